use super::{EXAMPLE, executed, ordered, parse, written};
use crate::*;
use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::sched::Share;
use proptest::collection::{hash_set, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn scheduler() -> impl Strategy<Value = SchedulerKind> {
    prop_oneof![
        Just(SchedulerKind::Fair),
        any::<bool>().prop_map(|prioritize| SchedulerKind::Wrr { prioritize }),
        (1u64..=10_000).prop_map(|millis| SchedulerKind::Netback { refill: Nanos::from_millis(millis) }),
    ]
}

fn uplink(place: usize) -> impl Strategy<Value = Uplink> {
    let wire = (0..=10_000_000_000u64, 1514..=1u64 << 30, any::<bool>()).prop_map(|(delay, queue, backpressure)| {
        Uplink::Wire { to: "far".into(), delay: Nanos(delay), queue, backpressure }
    });
    match place {
        0 => Just(Uplink::None).boxed(),
        1 => wire.boxed(),
        2 => Just(Uplink::Tap { name: "fl0".into() }).boxed(),
        _ => {
            prop_oneof![Just(Uplink::Card { name: "eth0".into() }), Just(Uplink::Xdp { name: "eth0".into() }),].boxed()
        }
    }
}

/// Link 0 is the far end of the wire of link 1; links 2 and 3 have a tap and a card.
fn link(place: usize) -> impl Strategy<Value = Link> {
    let rate = proptest::option::of(1_000..=10_000_000_000_000u64);
    let parts = (rate, scheduler(), 1_000..=60_000_000_000u64, any::<bool>(), uplink(place));
    parts.prop_map(move |(rate, scheduler, idle_timeout, isolate, uplink)| Link {
        name: ["far", "near", "lan", "wan"][place].into(),
        rate,
        rx_rate: rate.filter(|rate| rate % 2 == 0),
        scheduler,
        idle_timeout: Nanos(idle_timeout),
        isolate,
        cpu: Some(place).filter(|place| *place > 2),
        uplink,
        xen: place == 3,
        rx_pool: (64 << 10) + idle_timeout,
    })
}

/// A vif with its name, socket and MAC address derived from `place`. Its guarantee is at most a tenth of the link's
/// rate.
fn vif(place: u8, link: Link) -> impl Strategy<Value = Vif> {
    let fair = link.scheduler == SchedulerKind::Fair;
    let framed = !matches!(link.scheduler, SchedulerKind::Netback { .. });
    let most = if fair { link.rate.unwrap_or(1_000_000_000_000) / 10 } else { 0 };
    let guarantee = if most < 1_000 { Just(0).boxed() } else { prop_oneof![Just(0), 1_000..=most].boxed() };
    let share = (1..=10_000u32, guarantee, proptest::option::of(0..1_000_000_000u64), 1514..=1u64 << 30);
    let addresses = vec(prop_oneof![(1..=0x7fff_ffffu32).prop_map(|bits| IpAddr::V4(bits.into()))], 0..3);
    let parts = (share, any::<bool>(), 1..=16u16, any::<bool>(), addresses, 0..2u8, 0..3u8);
    parts.prop_map(move |(share, connect, queues, pinned, addresses, socket, early)| {
        let (weight, min_rate, above, burst) = share;
        let max_rate = above.map(|above| min_rate.max(1_000) + above);
        let (max_frames, frame_burst) = (above.map(|above| 1 + above), u64::from(weight));
        let share = Share { weight, min_rate, max_rate, burst, max_frames, frame_burst };
        Vif {
            name: format!("vif-{place}"),
            link: link.name.clone(),
            // A name may come with either of two sockets, so that sockets move between vifs.
            card: match place ^ socket {
                other if other % 3 > 0 => Card::VhostUser {
                    socket: format!("/run/{other}.sock").into(),
                    connect,
                    access: Access {
                        owner: pinned.then(|| Account::Name(format!("user{}", queues % 3))),
                        group: (queues % 2 == 0).then_some(Account::Number(queues.into())),
                        mode: (!connect && queues % 5 == 0).then_some(0o600 | u32::from(queues)),
                    },
                    packed: queues % 7 == 0,
                },
                guest => Card::Xen { guest: format!("guest {guest}"), device: connect.into() },
            },
            queues,
            tenant: None,
            shares: Shares {
                tx: Share { max_frames: max_frames.filter(|_| framed), ..share },
                rx: Share { weight: if pinned { 10_001 - weight } else { weight }, ..share },
                same_weight: !pinned,
            },
            rx_queue: burst,
            rx_timeout: Nanos::from_millis(queues.into()),
            mac: pinned.then_some(Mac([2, 0, 0, 0, 0, place])),
            addresses,
            early_ack: [Mode::Off, Mode::Auto, Mode::Always][usize::from(early % 3)],
        }
    })
}

/// Tenants of every vif that can have one, each with a guarantee that its vifs' fit into.
fn tenants(links: &[Link], vifs: &mut [Vif]) -> Vec<Tenant> {
    let fair = |vif: &Vif| links.iter().any(|link| link.name == vif.link && link.scheduler == SchedulerKind::Fair);
    let mut tenants: Vec<Tenant> = Vec::new();
    for vif in vifs.iter_mut().filter(|vif| fair(vif) && vif.queues % 3 > 0) {
        let name = format!("{}-{}", vif.link, vif.queues % 3);
        vif.tenant = Some(name.clone());
        let Shares { tx, rx, same_weight } = vif.shares;
        match tenants.iter_mut().find(|tenant| tenant.name == name) {
            Some(tenant) => {
                tenant.shares.tx.min_rate += tx.min_rate;
                tenant.shares.rx.min_rate += rx.min_rate;
            }
            None => {
                let without_limit = |share: Share| Share { max_rate: None, ..share };
                let (tx, rx) = (without_limit(tx), without_limit(rx));
                tenants.push(Tenant { name, shares: Shares { tx, rx, same_weight }, min_rate_on: BTreeMap::new() });
            }
        }
    }
    // Some have their guarantee on this link only, and some another one elsewhere.
    for Tenant { name, shares, min_rate_on } in &mut tenants {
        let (here, _) = name.split_once('-').expect("a link and a number");
        match shares.tx.weight % 3 {
            0 => drop(min_rate_on.insert(here.to_owned(), std::mem::take(&mut shares.tx.min_rate))),
            1 => min_rate_on.extend(links.iter().filter(|link| link.name != here).map(|link| (link.name.clone(), 0))),
            _ => {}
        }
    }
    tenants
}

fn policy() -> impl Strategy<Value = Policy> {
    let links = (link(0), link(1), link(2), link(3)).prop_map(|(a, b, c, d)| vec![a, b, c, d]);
    links.prop_flat_map(|links| {
        let places = hash_set(0u8..10, 0..10);
        let choice = links.clone();
        let vifs = places.prop_flat_map(move |places| {
            let vifs: Vec<_> = places
                .into_iter()
                .map(|place| proptest::sample::select(choice.clone()).prop_flat_map(move |link| vif(place, link)))
                .collect();
            vifs
        });
        vifs.prop_map(move |mut vifs: Vec<Vif>| {
            let mut cards = std::collections::HashSet::new();
            vifs.retain(|vif| {
                cards.insert(match &vif.card {
                    Card::VhostUser { socket, .. } => socket.display().to_string(),
                    Card::Xen { guest, device } => format!("{guest}/{device}"),
                })
            });
            let tenants = tenants(&links, &mut vifs);
            let control = "/run/control".into();
            let (observe, sockets) = (None, Access::default());
            let (metrics, metrics_token) = ("[::1]:9477".parse().ok(), Some("/t".into()));
            Policy { control, metrics, metrics_token, observe, sockets, links: links.clone(), tenants, vifs }
        })
    })
}

/// A key and a value, many of them valid.
fn setting() -> impl Strategy<Value = (String, String)> {
    let keys = [
        "weight",
        "min_rate",
        "min_rate_on.far",
        "min_rate_on.lan",
        "max_rate",
        "burst",
        "max_frames",
        "frame_burst",
        "tenant",
        "rx_rate",
        "rx_max_frames",
        "rx_frame_burst",
        "rx_weight",
        "rx_min_rate",
        "rx_max_rate",
        "rx_burst",
        "rx_queue",
        "rx_timeout",
        "early_ack",
        "rate",
        "scheduler",
        "prioritize",
        "refill",
        "idle_timeout",
        "isolate",
        "rx_pool",
    ];
    let values = vec![
        "1", "250", "10000", "0", "none", "5Mbit/s", "70Mbit/s", "2Gbit/s", "64KiB", "20ms", "true", "false", "fair",
        "wrr", "netback", "always",
    ];
    let key = proptest::sample::select(keys.to_vec());
    (key, proptest::sample::select(values)).prop_map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// The same policy with everything sorted by name.
fn ordered_by_name(mut policy: Policy) -> Policy {
    policy.tenants.sort_by(|a, b| a.name.cmp(&b.name));
    policy.links.sort_by(|a, b| a.name.cmp(&b.name));
    policy.vifs.sort_by(|a, b| a.name.cmp(&b.name));
    policy
}

/// A valid file with some parts removed or overwritten.
fn mutated() -> impl Strategy<Value = String> {
    let pieces = [
        "",
        "\"",
        "[",
        "]]",
        "=",
        "\n",
        "0",
        "-1",
        "none",
        "name",
        "[[vif]]\n",
        "{",
        "}",
        "#",
        ".",
        "\u{0}",
        "ß",
        "1e9",
    ];
    let edit = (any::<prop::sample::Index>(), 0..12usize, proptest::sample::select(pieces.to_vec()));
    vec(edit, 1..8).prop_map(|edits| {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (place, length, piece) in edits {
            let start = place.index(text.len());
            let end = (start + length).min(text.len());
            text.splice(start..end, piece.chars());
        }
        text.into_iter().collect()
    })
}

/// Parses a text and checks that every problem is on one line, has a line of the file, and is sorted by it.
fn problems_are_well_formed(text: &str) -> Result<(), TestCaseError> {
    if let Err(problems) = Policy::parse("p", text) {
        prop_assert!(!problems.is_empty());
        let lines = text.split('\n').count();
        for problem in &problems {
            prop_assert!((1..=lines).contains(&problem.line), "{problem}");
            prop_assert!(!problem.to_string().contains('\n'), "{problem:?}");
        }
        prop_assert!(problems.is_sorted_by_key(|problem| problem.line));
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text: String) {
        problems_are_well_formed(&text)?;
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(text in mutated()) {
        problems_are_well_formed(&text)?;
    }

    #[test]
    fn every_policy_can_be_written(policy in policy()) {
        prop_assert_eq!(parse(&written(&policy)), policy);
    }

    /// What was changed at run time survives a restart: the files with the saved one are what ran.
    #[test]
    fn what_is_saved_is_what_runs(old in policy(), newer in policy()) {
        let newer = Policy { control: old.control.clone(), metrics: old.metrics, ..newer };
        let files = |text: String| Files::new(File::new("p", written(&old)), vec![File::new("p.d/saved.toml", text)]);
        let loaded = files(newer.saved(&old)).load(&Files::default()).unwrap();
        prop_assert_eq!(&loaded.problems, &Vec::new());
        prop_assert_eq!(ordered_by_name(loaded.policy), ordered_by_name(newer.clone()));
        prop_assert_eq!(&loaded.base, &old);
        let text = old.saved(&old);
        prop_assert!(!text.contains('['), "{}", text);
    }

    /// Parts are added from the text of their keys, and removed again, which leaves the policy as it was.
    #[test]
    fn parts_come_and_go(mut policy in policy(), keys in vec((any::<String>(), any::<String>()), 0..3), pick: prop::sample::Index) {
        let before = policy.clone();
        for kind in Kind::ALL {
            if policy.add(kind, "other", &keys, false).is_ok() {
                prop_assert_eq!(parse(&written(&policy)), policy.clone());
                policy.remove(kind, "other").unwrap();
            }
            prop_assert_eq!(&policy, &before);
        }
        let vifs: Vec<String> = policy.vifs.iter().map(|vif| vif.name.clone()).collect();
        if !vifs.is_empty() {
            policy.remove(Kind::Vif, &vifs[pick.index(vifs.len())]).unwrap();
            prop_assert_eq!(parse(&written(&policy)), policy.clone());
            prop_assert_eq!(policy.vifs.len() + 1, before.vifs.len());
        }
    }

    #[test]
    fn any_setting_is_read_or_refused(key: String, value: String, known in setting()) {
        let _ = Setting::parse(&key, &value);
        let _ = Setting::parse(&known.0, &value);
    }

    /// A setting changes one value, to one that a file could have; a refused setting changes nothing.
    #[test]
    fn a_setting_keeps_a_policy_valid(mut policy in policy(), settings in vec((setting(), any::<prop::sample::Index>()), 1..20)) {
        for ((key, value), target) in settings {
            let Ok(setting) = Setting::parse(&key, &value) else { continue };
            let names: Vec<String> = match setting {
                Setting::Vif(_) => policy.vifs.iter().map(|vif| vif.name.clone()).collect(),
                Setting::Share(..) => {
                    let vifs = policy.vifs.iter().map(|vif| vif.name.clone());
                    vifs.chain(policy.tenants.iter().map(|tenant| tenant.name.clone())).collect()
                }
                Setting::MinRateOn { .. } => policy.tenants.iter().map(|tenant| tenant.name.clone()).collect(),
                Setting::Link(_) => policy.links.iter().map(|link| link.name.clone()).collect(),
            };
            if names.is_empty() {
                continue;
            }
            let before = policy.clone();
            match policy.apply(&names[target.index(names.len())], setting) {
                Err(_) => prop_assert_eq!(&policy, &before),
                Ok(()) => {
                    prop_assert_eq!(parse(&written(&policy)), policy.clone());
                    let changes = before.changes(&policy).expect("a setting needs no restart");
                    // A tenant may have vifs on several links, and a link's first and last tenant change the scheduler.
                    let about_tenants = |change: &Change| matches!(change, Change::Tenant { .. } | Change::Member { .. });
                    let others = changes.iter().filter(|change| !about_tenants(change)).count();
                    prop_assert!(others <= 1, "{:?}", changes);
                    prop_assert_eq!(ordered(executed(&before, &policy, changes)), ordered(policy.clone()));
                }
            }
        }
    }

    /// The changes lead to the newer policy, and back when reverted. From a policy to itself there are none.
    #[test]
    fn changes_lead_to_the_newer_policy(old in policy(), newer in policy()) {
        let mut newer = newer;
        for (new, old) in newer.links.iter_mut().zip(&old.links) {
            new.uplink = old.uplink.clone();
        }
        let changes = old.changes(&newer).expect("nothing needs a restart");
        prop_assert_eq!(ordered(executed(&old, &newer, changes.clone())), ordered(newer.clone()));
        prop_assert_eq!(newer.changes(&newer), Ok(Vec::new()));
        changes.iter().rev().for_each(|change| newer.revert(change, &old));
        prop_assert_eq!(ordered(Policy { control: old.control.clone(), metrics: old.metrics, metrics_token: old.metrics_token.clone(), ..newer }), ordered(old));
    }
}
