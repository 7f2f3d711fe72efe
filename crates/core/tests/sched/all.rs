//! Properties of every scheduler, under arbitrary sequences of calls.

use crate::sim::{IDLE_TIMEOUT, LINK, Load, Sim, Step, cases, share, worst_excess};
use fairlane_core::sched::{After, Cost, Next, SchedulerKind, Share, build, build_for_tenants};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_core::{PortId, TenantId};
use proptest::prelude::*;
use std::collections::VecDeque;

const PORTS: usize = 6;

const KINDS: [SchedulerKind; 4] = [
    SchedulerKind::Fair,
    SchedulerKind::Wrr { prioritize: true },
    SchedulerKind::Wrr { prioritize: false },
    SchedulerKind::Netback { refill: Nanos::from_millis(50) },
];

fn kind() -> impl Strategy<Value = SchedulerKind> {
    prop::sample::select(KINDS.to_vec())
}

#[derive(Clone, Copy, Debug)]
enum Call {
    /// Assigns the port to one of two tenants or none, if it is new.
    Configure(usize, Share, Option<TenantId>),
    Remove(usize),
    Activate(usize),
    Next,
    /// Charges the port in service, or one that is not in service.
    Charge(usize, Cost, After),
    Pass(u64),
}

fn a_share() -> impl Strategy<Value = Share> {
    let limit = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 3 => (1u64..1_000_000_000).prop_map(Some), 1 => Just(Some(u64::MAX))];
    let floor = prop_oneof![3 => Just(0u64), 3 => 1u64..1_000_000_000, 1 => Just(u64::MAX)];
    let weight = prop_oneof![1u32..=10_000, Just(1), Just(10_000), Just(0), Just(u32::MAX)];
    let burst = prop_oneof![0u64..100_000, Just(u64::MAX)];
    let frames = (limit.clone(), burst.clone());
    (weight, floor, limit, burst, frames).prop_map(|(weight, min_rate, max_rate, burst, (max_frames, frame_burst))| {
        Share { weight, min_rate, max_rate, burst, max_frames, frame_burst }
    })
}

fn a_cost() -> impl Strategy<Value = Cost> {
    let sane = (0u64..80_000, 0u64..64, 0u64..100_000).prop_map(|(bytes, frames, nanos)| Cost {
        bytes,
        uplink_bytes: bytes,
        frames,
        segments: frames + bytes / 1_500,
        nanos,
    });
    let most = u64::MAX;
    let huge = Cost { bytes: most, uplink_bytes: most, frames: most, segments: most, nanos: most };
    prop_oneof![20 => sane, 1 => Just(huge), 1 => Just(Cost::default())]
}

fn a_call() -> impl Strategy<Value = Call> {
    let after = prop_oneof![4 => Just(After::Backlogged), 1 => Just(After::Empty), 1 => Just(After::Blocked)];
    let time = prop_oneof![8 => 0u64..1_000_000, 2 => 0u64..SECOND, 1 => Just(4_000 * SECOND)];
    let tenant = prop::option::of((0..2u32).prop_map(TenantId));
    prop_oneof![
        2 => (0..PORTS, a_share(), tenant).prop_map(|(port, share, tenant)| Call::Configure(port, share, tenant)),
        1 => (0..PORTS).prop_map(Call::Remove),
        4 => (0..PORTS + 2).prop_map(Call::Activate),
        10 => Just(Call::Next),
        10 => (0..PORTS + 2, a_cost(), after).prop_map(|(port, cost, after)| Call::Charge(port, cost, after)),
        5 => time.prop_map(Call::Pass),
    ]
}

/// The shares of active ports that are not in service.
fn waiting(ports: &[Known]) -> impl Iterator<Item = &Share> {
    ports.iter().filter_map(|port| if let Known::Active(share) = port { Some(share) } else { None })
}

/// The state of a port, from the caller's side.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Nothing,
    Idle(Share),
    Active(Share),
    Serving(Share),
}

proptest! {
    #![proptest_config(cases(512))]

    /// Only active ports are offered, none twice before its charge; no port waits without a limit; no call panics.
    #[test]
    fn no_sequence_of_calls_breaks_the_rules(
        kind in prop::option::of(kind()),
        calls in prop::collection::vec(a_call(), 1..300),
    ) {
        let mut scheduler = match kind {
            Some(kind) => build(kind, Some(LINK), IDLE_TIMEOUT),
            None => build_for_tenants(Some(LINK), IDLE_TIMEOUT),
        };
        for tenant in (0..2).map(TenantId) {
            scheduler.configure_tenant(tenant, share(1 + tenant.0), Nanos(0));
        }
        let mut ports = [Known::Nothing; PORTS + 2];
        let mut now = Nanos(1);
        for call in calls {
            match call {
                Call::Configure(port, share, tenant) => {
                    if ports[port] == Known::Nothing {
                        scheduler.assign(PortId(port as u32), tenant);
                    }
                    scheduler.configure(PortId(port as u32), share, now);
                    ports[port] = match ports[port] {
                        Known::Nothing | Known::Idle(_) => Known::Idle(share),
                        Known::Active(_) => Known::Active(share),
                        Known::Serving(_) => Known::Serving(share),
                    };
                }
                Call::Remove(port) => {
                    scheduler.remove(PortId(port as u32));
                    ports[port] = Known::Nothing;
                }
                Call::Activate(port) => {
                    scheduler.activate(PortId(port as u32), now);
                    if let Known::Idle(share) = ports[port] {
                        ports[port] = Known::Active(share);
                    }
                }
                Call::Next => match scheduler.next(now) {
                    Next::Serve(port, budget) => {
                        let Known::Active(share) = ports[port.index()] else {
                            panic!("{port:?} was offered, and is {:?}", ports[port.index()]);
                        };
                        prop_assert!(budget.bytes > 0 && budget.frames > 0);
                        ports[port.index()] = Known::Serving(share);
                    }
                    Next::WaitUntil(at) => {
                        prop_assert!(at > now);
                        prop_assert!(waiting(&ports).count() > 0, "a wait without an active port");
                        prop_assert!(waiting(&ports).all(Share::is_limited), "a port without limit waits");
                    }
                    Next::Idle => prop_assert_eq!(waiting(&ports).count(), 0),
                },
                Call::Charge(port, cost, after) => {
                    let serving = ports.iter().position(|port| matches!(port, Known::Serving(_)));
                    let port = if port < PORTS { serving.unwrap_or(port) } else { port };
                    scheduler.charge(PortId(port as u32), cost, after, now);
                    if let Known::Serving(share) = ports[port] {
                        let backlogged = after == After::Backlogged;
                        ports[port] = if backlogged { Known::Active(share) } else { Known::Idle(share) };
                    }
                }
                Call::Pass(time) => now += Nanos(time),
            }
        }
    }

    /// The link is never idle while a port that may send has frames, every frame is sent, and no port starves.
    #[test]
    fn work_is_conserved(
        kind in kind(),
        loads in prop::collection::vec((1u32..=10_000, 1usize..400, prop_oneof![Just(64u64), Just(1_514), Just(65_550)]), 1..20),
    ) {
        let mut sim = Sim::new(kind, LINK);
        for (weight, frames, size) in &loads {
            sim.add(share(*weight), Load::Finite(VecDeque::from(vec![*size; *frames])));
        }
        while let Step::Served(service) = sim.step() {
            prop_assert!(service.bytes > 0, "an empty ring was visited");
        }
        for (guest, (_, frames, size)) in sim.guests.iter().zip(&loads) {
            prop_assert_eq!(guest.bytes, *frames as u64 * size);
        }
        let total: u64 = sim.guests.iter().map(|guest| guest.time).sum();
        prop_assert_eq!(sim.now, Nanos(total), "the link was idle");
    }

    /// No window has more than the burst, the rate and the overshoot of one frame.
    #[test]
    fn max_rate_is_never_exceeded_in_a_round_robin(
        prioritize in any::<bool>(),
        limits in prop::collection::vec((100_000u64..60_000_000, 1_514u64..300_000, 64u64..65_550), 1..6),
    ) {
        let mut sim = Sim::new(SchedulerKind::Wrr { prioritize }, LINK);
        for (rate, burst, size) in &limits {
            sim.flood(Share { max_rate: Some(*rate), burst: *burst, ..share(5) }, *size);
        }
        let services = sim.run_until(Nanos(2 * SECOND));
        for (port, (rate, burst, size)) in limits.iter().enumerate() {
            let excess = worst_excess(&services, port, *rate);
            prop_assert!(excess <= (burst + size) as f64, "{excess} over {burst}");
        }
    }

    /// A port sends its `max_frames` and no more, and a large frame counts as its segments.
    #[test]
    fn max_frames_are_kept(
        kind in prop_oneof![Just(SchedulerKind::Fair), Just(SchedulerKind::Wrr { prioritize: true })],
        limits in prop::collection::vec((1u64..2_000, 250u64..500, 64u64..65_550), 1..4),
    ) {
        let mut sim = Sim::new(kind, LINK);
        for (rate, burst, size) in &limits {
            sim.flood(Share { max_frames: Some(*rate), frame_burst: *burst, ..share(5) }, *size);
        }
        sim.run_until(Nanos(2 * SECOND));
        for (guest, (rate, burst, size)) in sim.guests.iter().zip(&limits) {
            let segments = size.div_ceil(1_514);
            let sent = guest.frames * segments;
            // A service may exceed its tokens by what its budget still allowed.
            prop_assert!(sent <= 2 * rate + burst + 32 * segments, "{sent} of {rate}");
            prop_assert!(sent + 8 >= 2 * rate, "{sent} of {rate}");
        }
    }
}

#[test]
fn a_port_removed_in_service_and_configured_again_is_a_new_one() {
    for kind in KINDS {
        let mut scheduler = build(kind, Some(LINK), IDLE_TIMEOUT);
        let port = PortId(0);
        scheduler.configure(port, share(1), Nanos(0));
        scheduler.activate(port, Nanos(0));
        assert!(matches!(scheduler.next(Nanos(0)), Next::Serve(..)));
        scheduler.remove(port);
        scheduler.configure(port, share(1), Nanos(0));
        scheduler.charge(port, Cost::default(), After::Backlogged, Nanos(0));
        assert_eq!(scheduler.next(Nanos(0)), Next::Idle, "the old service's charge does not make it active");
        scheduler.activate(port, Nanos(0));
        assert!(matches!(scheduler.next(Nanos(0)), Next::Serve(..)));
    }
}
