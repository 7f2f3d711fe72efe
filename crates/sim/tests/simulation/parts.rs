//! What each guest gets of a link, in either direction, and of a worker, by all of the engine: what policy divides among those that want
//! it.

use crate::due::{Demand, divide, divide_among};
use crate::support::{run, scenario, traffic, with_tenants};
use fairlane_core::time::Nanos;
use fairlane_sim::Tally;
use fairlane_sim::scenario::{Place, Scenario, Source, Traffic, Work};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// How far a guest may be from what it is due, as a part of the whole.
const TOLERANCE: f64 = 0.01;

/// The link's rate, Mbit/s.
const LINK: f64 = 100.0;

/// A guest's policy and what is sent, Mbit/s, in frames of so many bytes; the most is also in frames a second.
#[derive(Clone, Debug)]
struct Guest {
    weight: u32,
    least: Option<u32>,
    most: Option<u32>,
    most_frames: Option<u32>,
    wants: u64,
    is_even: bool,
    frame: u32,
}

impl Guest {
    /// Its keys in a policy, for one direction.
    fn keys(&self, direction: &str) -> String {
        let rate = |key: &str, rate: Option<u32>| {
            rate.map_or(String::new(), |rate| format!("{direction}{key} = \"{rate}Mbit/s\"\n"))
        };
        let least = self.least.map(|least| least.min(self.most.unwrap_or(least)));
        let frames = self.most_frames.map_or(String::new(), |frames| format!("{direction}max_frames = {frames}\n"));
        let weight = format!("{direction}weight = {}\n", self.weight);
        weight + &rate("min_rate", least) + &rate("max_rate", self.most) + &frames
    }

    fn source(&self) -> Source {
        let rate = self.wants * 1_000_000;
        if self.is_even { Source::Constant { rate } } else { Source::Poisson { rate } }
    }

    /// What those with this policy demand if they want so much together.
    fn demand(&self, wants: f64) -> Demand {
        let most = self.most.map_or(wants, |most| wants.min(most.into()));
        let most = self.most_frames.map_or(most, |frames| most.min(f64::from(frames * self.frame) * 8e-6));
        Demand { least: self.least.unwrap_or(0).into(), ..Demand::of(self.weight, most) }
    }
}

fn guests_of(
    number: impl Into<prop::collection::SizeRange>,
    wants: std::ops::Range<u64>,
) -> impl Strategy<Value = Vec<Guest>> {
    let rates = (prop::option::of(1u32..15), prop::option::of(2u32..80), prop::option::weighted(0.2, 500u32..20_000));
    let guest =
        (1u32..10, rates, wants, any::<bool>(), 300u32..1514).prop_map(|(weight, rates, wants, is_even, frame)| {
            let (least, most, most_frames) = rates;
            Guest { weight, least, most, most_frames, wants, is_even, frame }
        });
    prop::collection::vec(guest, number)
}

fn guests(wants: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Guest>> {
    guests_of(1..6, wants)
}

/// What each guest's source made, as random ones make a little more or less than their rate, and what of that arrived: of two seconds,
/// after three.
fn measured(scenario: &mut Scenario) -> (Vec<f64>, Vec<f64>) {
    (scenario.seconds, scenario.settle) = (5.0, Nanos::from_millis(3000));
    let outcome = run(scenario);
    let rate = |bytes: u64| bytes as f64 * 8e-6 / outcome.seconds;
    let made = |(traffic, tally): (&Traffic, &Tally)| rate(tally.settled.0 * u64::from(traffic.frame));
    let made = scenario.traffic.iter().zip(&outcome.tallies).map(made).collect();
    (made, outcome.flows.iter().map(|flows| rate(flows.iter().sum())).collect())
}

fn check(found: &[f64], due: &[f64], whole: f64) -> Result<(), TestCaseError> {
    let near = found.iter().zip(due).all(|(found, due)| (found - due).abs() < TOLERANCE * whole);
    prop_assert!(near, "{found:.2?}, not {due:.2?}");
    Ok(())
}

/// Whether guests, some of which are of two tenants, get what they are due of a link.
fn check_link(
    mut guests: Vec<Guest>,
    mut tenants: Vec<Guest>,
    whose: &[Option<usize>],
    receives: bool,
) -> Result<(), TestCaseError> {
    let way = if receives { "rx_" } else { "" };
    let mut keys = Vec::new();
    for (guest, tenant) in guests.iter_mut().zip(whose) {
        // A guarantee of a tenant's guest must fit the tenant's.
        guest.least = guest.least.filter(|_| tenant.is_none());
        keys.push(guest.keys(way));
    }
    // Frames of a tenant's guests have different lengths.
    tenants.iter_mut().for_each(|tenant| tenant.most_frames = None);
    let keys = with_tenants(keys.into_iter(), whose, tenants.iter().map(|tenant| tenant.keys(way)));
    let mut scenario = scenario(&keys);
    if receives {
        scenario.hosts[0].link.rx_rate = Some((LINK * 1e6) as u64);
    }
    for (index, guest) in guests.iter().enumerate() {
        let (from, to) = (Place::Guest(index), Place::Outside);
        let (from, to) = if receives { (to, from) } else { (from, to) };
        let mut traffic = traffic(guest.source(), from, to);
        traffic.frame = guest.frame;
        scenario.traffic.push(traffic);
    }
    let (made, found) = measured(&mut scenario);
    let demands: Vec<Demand> = guests.iter().zip(made).map(|(guest, made)| guest.demand(made)).collect();
    let tenants: Vec<Demand> = tenants.iter().map(|tenant| tenant.demand(f64::INFINITY)).collect();
    check(&found, &divide_among(&demands, &tenants, whose, LINK), LINK)
}

/// Two guests want a little more than their parts. One is of a tenant whose other guest is above its rate, while others come and go:
/// the tenant keeps its place while a service of its guest waits for the uplink.
#[test]
fn a_guest_above_its_rate_costs_its_tenant_nothing() {
    let guest = |weight, most, wants, frame| Guest {
        weight,
        least: None,
        most,
        most_frames: None,
        wants,
        is_even: false,
        frame,
    };
    let guests =
        vec![guest(3, None, 50, 1079), guest(2, Some(2), 5, 367), guest(1, None, 6, 348), guest(9, None, 49, 335)];
    let tenants = vec![guest(3, None, 1, 300)];
    check_link(guests, tenants, &[None, Some(0), None, Some(0)], false).expect("parts of the link");
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(24) })]

    /// Some are of two tenants, which have shares of their own.
    #[test]
    fn guests_get_what_they_are_due_of_the_link(
        guests in guests(1..150),
        tenants in guests_of(2, 1..2),
        whose in prop::collection::vec(prop::option::of(0usize..2), 5),
        receives: bool,
    ) {
        check_link(guests, tenants, &whose, receives)?;
    }

    /// A worker that needs 10 us for a frame, so some 1,200 Mbit/s, and senders whose rings it empties again and again.
    #[test]
    fn guests_get_what_they_are_due_of_the_worker(guests in guests(20..1500)) {
        let keys: Vec<String> = guests.iter().map(|guest| format!("weight = {}", guest.weight)).collect();
        let mut scenario = scenario(&keys);
        let host = &mut scenario.hosts[0];
        (host.link.rate, host.card) = (None, 100_000_000_000);
        host.costs.work = Work { frame: 10_000.0, byte: 0.0 };
        for (index, guest) in guests.iter().enumerate() {
            scenario.traffic.push(traffic(guest.source(), Place::Guest(index), Place::Outside));
        }
        let (made, found) = measured(&mut scenario);
        let demands: Vec<Demand> = guests.iter().zip(made).map(|(guest, made)| Demand::of(guest.weight, made)).collect();
        let whole = found.iter().sum();
        check(&found, &divide(&demands, whole), whole)?;
    }

    /// A guest that needs 10 us for a frame, which others send to it.
    #[test]
    fn guests_get_what_they_are_due_of_another_guest(guests in guests(20..1500)) {
        let mut keys: Vec<String> = guests.iter().map(|guest| format!("weight = {}", guest.weight)).collect();
        keys.push(String::new());
        let mut scenario = scenario(&keys);
        scenario.hosts[0].link.rate = None;
        scenario.guests[guests.len()].rx_work = Work { frame: 10_000.0, byte: 0.0 };
        for (index, guest) in guests.iter().enumerate() {
            scenario.traffic.push(traffic(guest.source(), Place::Guest(index), Place::Guest(guests.len())));
        }
        let (made, found) = measured(&mut scenario);
        let demands: Vec<Demand> = guests.iter().zip(made).map(|(guest, made)| Demand::of(guest.weight, made)).collect();
        let whole = found.iter().sum();
        // A sender whose part is hardly enough loses some frames of each of its bursts.
        check(&found, &divide(&demands, whole), 5.0 * whole)?;
    }
}
