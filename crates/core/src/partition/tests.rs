use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MORE: u64 = u64::MAX;

fn claims(claims: &[(u64, u64)]) -> Vec<Claim> {
    claims.iter().map(|(demand, room)| Claim { floor: 0, demand: *demand, room: *room }).collect()
}

#[test]
fn what_a_host_does_not_need_others_have() {
    assert_eq!(divide(90, &claims(&[(MORE, 100), (MORE, 100), (MORE, 100)])), [30, 30, 30]);
    assert_eq!(divide(90, &claims(&[(MORE, 100), (MORE, 100), (0, 100)])), [45, 45, 0]);
    assert_eq!(divide(90, &claims(&[(MORE, 100), (20, 100), (0, 100)])), [70, 20, 0]);
    assert_eq!(divide(90, &claims(&[(MORE, 10), (MORE, 100), (0, 100)])), [10, 80, 0]);
    assert_eq!(divide(90, &claims(&[(MORE, 10), (MORE, 20)])), [10, 20]);
    // What nobody demands is there for whoever begins to send.
    assert_eq!(divide(90, &claims(&[(0, 100), (0, 100), (0, 100)])), [30, 30, 30]);
    assert_eq!(divide(90, &claims(&[(50, 100), (20, 100), (0, 100)])), [50, 20, 20]);
    assert_eq!(divide(90, &[]), [0u64; 0]);
}

#[test]
fn floors_come_first() {
    let claim = |floor, demand| Claim { floor, demand, room: 100 };
    assert_eq!(divide(90, &[claim(0, MORE), claim(50, 0), claim(0, MORE)]), [20, 50, 20]);
    assert_eq!(divide(90, &[claim(60, 0), claim(50, 0)]), [60, 50]);
}

/// The rule as a fluid: all vessels that are not full are filled at the same speed, from where they begin, until nothing is left.
fn fluid(guarantee: u64, claims: &[Claim]) -> Vec<f64> {
    let floor = |claim: &Claim| claim.floor.min(claim.room) as f64;
    let demand = |claim: &Claim| claim.demand.max(claim.floor).min(claim.room) as f64;
    let demands: f64 = claims.iter().map(demand).sum();
    let scarce = demands >= guarantee as f64;
    let low = |claim: &Claim| if scarce { floor(claim) } else { demand(claim) };
    let high = |claim: &Claim| if scarce { demand(claim) } else { claim.room as f64 };
    let mut parts: Vec<f64> = claims.iter().map(low).collect();
    let mut left = guarantee as f64 - parts.iter().sum::<f64>();
    let mut level = 0.0;
    while left > 0.5 {
        // Those that rise now, and the next level at which one is full or another begins to rise.
        let rises = |index: &usize| parts[*index] <= level && parts[*index] < high(&claims[*index]);
        let rising: Vec<usize> = (0..claims.len()).filter(rises).collect();
        let full = rising.iter().map(|index| high(&claims[*index]));
        let begins = parts.iter().copied().filter(|part| *part > level);
        let Some(next) = full.chain(begins).min_by(f64::total_cmp) else { break };
        let step = if rising.is_empty() { next - level } else { (next - level).min(left / rising.len() as f64) };
        rising.iter().for_each(|index| parts[*index] += step);
        left -= step * rising.len() as f64;
        level += step;
    }
    parts
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let some = || prop_oneof![2 => Just(0), 5 => 0..1u64 << 40];
    let demand = prop_oneof![3 => some(), 1 => Just(MORE)];
    (prop_oneof![4 => Just(0), 1 => 0..1u64 << 34], demand, some()).prop_map(|(floor, demand, room)| Claim {
        floor,
        demand,
        room,
    })
}

fn any_claims() -> impl Strategy<Value = Vec<Claim>> {
    prop::collection::vec(any_claim(), 1..20)
}

fn any_guarantee() -> impl Strategy<Value = u64> {
    prop_oneof![0..1u64 << 38, 0..1u64 << 44]
}

fn sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.sum()
}

proptest! {
    #[test]
    fn all_of_the_guarantee_is_given_and_no_more(guarantee in any_guarantee(), claims in any_claims()) {
        let parts = divide(guarantee, &claims);
        let room = sum(claims.iter().map(|claim| claim.room));
        let floors = sum(claims.iter().map(|claim| claim.floor.min(claim.room)));
        let given = sum(parts.iter().copied());
        prop_assert!(given <= guarantee.max(floors));
        prop_assert!(given + parts.len() as u64 > guarantee.min(room));
        for (part, claim) in parts.iter().zip(&claims) {
            prop_assert!(*part <= claim.room && *part >= claim.floor.min(claim.room));
        }
    }

    #[test]
    fn demands_are_met_if_the_guarantee_suffices(guarantee in any_guarantee(), claims in any_claims()) {
        let met = |claim: &Claim| claim.demand.max(claim.floor).min(claim.room);
        let parts = divide(guarantee, &claims);
        let suffices = sum(claims.iter().map(met)) <= guarantee;
        for (part, claim) in parts.iter().zip(&claims) {
            let right = if suffices { *part >= met(claim) } else { *part <= met(claim) };
            prop_assert!(right, "{claim:?} {part}");
            // Nobody has more than one who lacks something, unless it must.
            if !suffices && *part < met(claim) {
                prop_assert!(parts.iter().zip(&claims).all(|(other, its)| *other <= *part || *other <= its.floor));
            }
        }
    }

    #[test]
    fn it_is_as_the_fluid(guarantee in any_guarantee(), claims in any_claims()) {
        for (part, exact) in divide(guarantee, &claims).iter().zip(fluid(guarantee, &claims)) {
            prop_assert!((*part as f64 - exact).abs() <= 20.0, "{part} {exact}");
        }
    }

    #[test]
    fn the_order_does_not_matter(
        guarantee in any_guarantee(),
        (claims, mixed) in any_claims().prop_flat_map(|claims| {
            let numbered: Vec<(usize, Claim)> = claims.iter().copied().enumerate().collect();
            (Just(claims), Just(numbered).prop_shuffle())
        }),
    ) {
        let parts = divide(guarantee, &claims);
        let again = divide(guarantee, &mixed.iter().map(|(_, claim)| *claim).collect::<Vec<_>>());
        for ((index, _), part) in mixed.iter().zip(again) {
            prop_assert_eq!(part, parts[*index]);
        }
    }

    #[test]
    fn who_demands_more_gets_no_less_and_others_no_more(
        guarantee in any_guarantee(),
        claims in any_claims(),
        more in 0..1u64 << 40,
    ) {
        let mut grown = claims.clone();
        grown[0].demand = claims[0].demand.saturating_add(more);
        let (before, after) = (divide(guarantee, &claims), divide(guarantee, &grown));
        prop_assert!(after[0] >= before[0]);
        prop_assert!(after[1..].iter().zip(&before[1..]).all(|(after, before)| after <= before));
        // A small change is answered by a small one.
        prop_assert!(after[0] - before[0] <= more.saturating_add(claims.len() as u64));
    }

    #[test]
    fn more_guarantee_is_less_for_nobody(guarantee in any_guarantee(), claims in any_claims(), more in 0..1u64 << 40) {
        let (before, after) = (divide(guarantee, &claims), divide(guarantee + more, &claims));
        prop_assert!(after.iter().zip(&before).all(|(after, before)| after >= before));
    }
}

fn second(seconds: u64) -> Nanos {
    Nanos(seconds * SECOND)
}

#[test]
fn a_demand_grows_at_once_and_falls_with_care() {
    let mut demand = Demand::default();
    let mut update = |sent, now| demand.claim(Measured { sent, floor: 0, room: 0 }, second(now)).demand;
    assert_eq!(update(Some(100), 1), 125);
    assert_eq!([update(Some(104), 2), update(Some(96), 3), update(Some(60), 4)], [130, 130, 130]);
    // It is believed in the end.
    assert_eq!([update(Some(80), 11), update(Some(80), 12)], [130, 100]);
    assert_eq!(update(None, 13), MORE);
    // Twice, one after the other.
    assert_eq!(
        [update(Some(80), 14), update(None, 15), update(Some(80), 16), update(Some(80), 17)],
        [MORE, MORE, MORE, 100]
    );
    assert_eq!([update(Some(39), 18), update(Some(39), 19)], [100, 48]);
    assert_eq!([update(Some(0), 20), update(Some(0), 21)], [48, 0]);
}

/// What `h1` hears of itself and `h2`, both of which want more: each one's time of the last claim.
fn hear(heard: &mut Heard, host: &str, seconds: std::ops::RangeInclusive<u64>) {
    for now in seconds {
        heard.hear(host, Claim { floor: 0, demand: MORE, room: 100 }, second(now));
    }
}

/// The part of a host that claims once.
fn part(heard: &mut Heard, guarantee: u64, now: Nanos) -> Option<u64> {
    let parts = heard.parts(guarantee, now)?;
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["h1"]);
    parts.get("h1").copied()
}

#[test]
fn a_host_listens_first_and_the_silent_have_no_part() {
    let mut heard = Heard::new("h1");
    assert_eq!(part(&mut heard, 90, second(9)), None);
    hear(&mut heard, "h1", 10..=11);
    assert_eq!(part(&mut heard, 90, second(11)), None);
    hear(&mut heard, "h2", 11..=12);
    hear(&mut heard, "h1", 12..=16);
    assert_eq!(part(&mut heard, 90, second(16)), Some(45));
    hear(&mut heard, "h1", 17..=17);
    assert_eq!(part(&mut heard, 90, second(17)), Some(90));
}

#[test]
fn a_host_that_is_cut_off_keeps_its_part_and_forgets_nobody() {
    let mut heard = Heard::new("h1");
    for host in ["h1", "h2"] {
        hear(&mut heard, host, 10..=20);
    }
    assert_eq!(part(&mut heard, 90, second(20)), Some(45));
    assert_eq!(part(&mut heard, 90, second(23)), None);
    // It hears itself again before it hears the other.
    hear(&mut heard, "h1", 100..=104);
    assert_eq!(part(&mut heard, 90, second(101)), None);
    assert_eq!(part(&mut heard, 90, second(104)), Some(45));
    hear(&mut heard, "h1", 105..=105);
    assert_eq!(part(&mut heard, 90, second(105)), Some(90));
}

#[test]
fn a_host_has_a_part_for_each_link_on_which_it_claims() {
    let names = ["lan", "dmz"].map(|link| claimant("h1", link, true));
    assert_eq!((names[0].as_str(), claimant("h1", "lan", false).as_str()), ("h1/lan", "h1"));
    let mut heard = Heard::new("h1");
    // A host with a longer name is another.
    hear(&mut heard, "h12", 10..=11);
    assert_eq!(heard.parts(90, second(11)), None);
    for name in ["h12", "h1", "h1/lan"] {
        hear(&mut heard, name, 10..=12);
    }
    // The former claim for one link only counts until it is silent.
    for name in ["h12", "h1/lan", "h1/dmz"] {
        hear(&mut heard, name, 13..=20);
    }
    let parts = |parts: &[(&str, u64)]| Some(parts.iter().map(|(name, part)| ((*name).to_owned(), *part)).collect());
    assert_eq!(heard.parts(120, second(16)), parts(&[("h1", 30), ("h1/dmz", 30), ("h1/lan", 30)]));
    assert_eq!(heard.parts(120, second(20)), parts(&[("h1/dmz", 40), ("h1/lan", 40)]));
    assert_eq!(heard.parts(120, second(23)), None);
}

proptest! {
    /// Every host, and every link of one, takes its own part of the same division, so all that is in force is the guarantee.
    #[test]
    fn what_hosts_and_their_links_have_is_the_guarantee(
        guarantee in any_guarantee(),
        hosts in prop::collection::vec(prop::collection::vec(any_claim(), 1..4), 1..6),
    ) {
        let several: Vec<Vec<(String, Claim)>> = hosts.iter().enumerate().map(|(number, links)| {
            let name = |link| claimant(&format!("h{number}"), &format!("l{link}"), links.len() > 1);
            links.iter().enumerate().map(|(link, claim)| (name(link), *claim)).collect()
        }).collect();
        let mut given = BTreeMap::new();
        for (number, links) in hosts.iter().enumerate() {
            let mut heard = Heard::new(&format!("h{number}"));
            for now in 1..=3 {
                for (name, claim) in several.iter().flatten() {
                    heard.hear(name, *claim, second(now));
                }
            }
            let parts = heard.parts(guarantee, second(3)).expect("it hears itself");
            prop_assert_eq!(parts.len(), links.len());
            given.extend(parts);
        }
        let all: BTreeMap<String, Claim> = several.into_iter().flatten().collect();
        let claims: Vec<Claim> = all.values().copied().collect();
        prop_assert_eq!(given.into_iter().collect::<Vec<_>>(), all.into_keys().zip(divide(guarantee, &claims)).collect::<Vec<_>>());
    }
}

#[test]
fn only_what_differs_is_news() {
    let mut heard = Heard::new("h1");
    let claim = |demand| Claim { floor: 0, demand, room: 100 };
    let mut news = |demand, now| heard.hear("h2", claim(demand), second(now));
    assert_eq!([news(1, 1), news(1, 2), news(2, 3), news(2, 4)], [true, false, true, false]);
}
