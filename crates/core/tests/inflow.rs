//! A worker in virtual time that serves guests' rings by weight and an uplink in the order of arrival: what each guest gets of it.

mod due;

use fairlane_core::inflow::{Inflow, Owner, Wants};
use fairlane_core::sched::{self, After, Budget, Cost, Next, Scheduler, SchedulerKind, Share};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_core::{PortId, TenantId};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::VecDeque;

/// Frames in a burst.
const BURST: usize = 32;

/// Time to deliver a frame, and to drop one, in nanoseconds.
const DELIVERY: u64 = 200;
const DROP: u64 = 20;

/// Slots of the uplink's ring.
const SLOTS: usize = 4096;

/// A flow: its weight, and the time a second that its frames would take.
type Demand = (u32, f64);

/// The tenant of each flow, if it has one, and the weight of tenant t: t + 1.
type Tenants<'a> = &'a [Option<u32>];

/// Tenants that may be in a test.
const TENANTS: u32 = 3;

fn tenant_weight(tenant: u32) -> u32 {
    tenant + 1
}

struct Worker {
    inflow: Inflow,
    scheduler: Box<dyn Scheduler>,
    now: Nanos,
    senders: Vec<Demand>,
    receivers: Vec<Demand>,
    /// The tenants of senders and of receivers.
    tenants: [Vec<Option<u32>>; 2],
    /// The time that each sender and each receiver took.
    took: [Vec<u64>; 2],
    /// Frames for each receiver that came from outside, and those that were dropped for its limit.
    came: Vec<u64>,
    refused: Vec<u64>,
    /// The receivers of frames in the uplink's ring, and the number of frames that found it full.
    ring: VecDeque<usize>,
    lost: u64,
}

impl Worker {
    fn new(senders: &[Demand], receivers: &[Demand]) -> Worker {
        Worker::with_tenants(senders, receivers, [&vec![None; senders.len()], &vec![None; receivers.len()]])
    }

    fn with_tenants(senders: &[Demand], receivers: &[Demand], tenants: [Tenants<'_>; 2]) -> Worker {
        let mut scheduler = if tenants[0].iter().any(Option::is_some) {
            sched::build_for_tenants(None, Nanos::from_millis(100))
        } else {
            sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100))
        };
        for (sender, (weight, _)) in senders.iter().enumerate() {
            let share = Share::of_weight(*weight);
            if let Some(tenant) = tenants[0][sender] {
                scheduler.configure_tenant(TenantId(tenant), Share::of_weight(tenant_weight(tenant)), Nanos(0));
            }
            scheduler.assign(PortId(sender as u32), tenants[0][sender].map(TenantId));
            scheduler.configure(PortId(sender as u32), share, Nanos(0));
        }
        Worker {
            tenants: tenants.map(<[_]>::to_vec),
            inflow: Inflow::new(),
            scheduler,
            now: Nanos(0),
            senders: senders.to_vec(),
            receivers: receivers.to_vec(),
            took: [vec![0; senders.len()], vec![0; receivers.len()]],
            came: vec![0; receivers.len()],
            refused: vec![0; receivers.len()],
            ring: VecDeque::new(),
            lost: 0,
        }
    }

    /// Whose a flow is; senders are direction 0, receivers 1.
    fn owner(&self, direction: usize, flow: usize) -> Owner {
        let (weight, _) = [&self.senders, &self.receivers][direction][flow];
        let tenant = self.tenants[direction][flow].map(|tenant| (TenantId(tenant), tenant_weight(tenant)));
        Owner { weight, tenant }
    }

    /// Frames of a flow that came until now.
    fn due(&self, (_, demand): Demand) -> u64 {
        (self.now.0 as f64 * demand / DELIVERY as f64) as u64
    }

    /// Puts frames into the uplink's ring, in an order without bursts.
    fn arrive(&mut self) {
        let mut coming = true;
        while std::mem::take(&mut coming) {
            for receiver in 0..self.receivers.len() {
                if self.came[receiver] < self.due(self.receivers[receiver]) {
                    self.came[receiver] += 1;
                    coming = true;
                    if self.ring.len() < SLOTS { self.ring.push_back(receiver) } else { self.lost += 1 }
                }
            }
        }
    }

    fn serve_uplink(&mut self) {
        for _ in 0..self.ring.len().min(BURST) {
            let Some(receiver) = self.ring.pop_front() else { break };
            let (port, owner) = (PortId(receiver as u32), self.owner(1, receiver));
            self.inflow.set_now(self.now);
            if self.inflow.admits(port) {
                self.inflow.received(port, owner, DELIVERY);
                self.took[1][receiver] += DELIVERY;
                self.now += Nanos(DELIVERY);
            } else {
                self.inflow.refused(port, owner, DELIVERY);
                self.refused[receiver] += 1;
                self.now += Nanos(DROP);
            }
        }
    }

    fn serve(&mut self, port: PortId, budget: Budget) {
        let sender = port.index();
        let frames = self.unsent(sender).min(budget.frames.into());
        let nanos = frames * DELIVERY;
        self.took[0][sender] += nanos;
        self.now += Nanos(nanos);
        let more = self.unsent(sender) > 0;
        let after = if more { After::Backlogged } else { After::Empty };
        self.scheduler.charge(port, Cost { frames, nanos, ..Cost::default() }, after, self.now);
        let wants = if more { Wants::All } else { Wants::Nothing };
        self.inflow.sent(port, self.owner(0, sender), nanos, wants);
    }

    /// Frames in a sender's ring.
    fn unsent(&self, sender: usize) -> u64 {
        self.due(self.senders[sender]).saturating_sub(self.took[0][sender] / DELIVERY)
    }

    fn round(&mut self) {
        self.arrive();
        for sender in 0..self.senders.len() {
            if self.unsent(sender) > 0 {
                self.scheduler.activate(PortId(sender as u32), self.now);
            }
        }
        let mut uplink = false;
        while self.inflow.uplink_is_next() && !self.ring.is_empty() {
            self.serve_uplink();
            uplink = true;
        }
        match self.scheduler.next(self.now) {
            Next::Serve(port, budget) => self.serve(port, budget),
            _ if self.ring.is_empty() && !uplink => {
                self.inflow.idle();
                self.now += Nanos(5_000);
            }
            _ => self.inflow.none_sends(),
        }
        let lost = self.lost;
        self.inflow.set_now(self.now);
        self.inflow.advance(|| lost);
    }

    /// The part of the worker's time that each sender and each receiver gets, after some time to settle.
    fn shares(&mut self) -> [Vec<f64>; 2] {
        self.run(Nanos(SECOND / 2));
        let (start, before) = (self.now, self.took.clone());
        self.run(Nanos(SECOND / 2));
        let elapsed = (self.now - start).0 as f64;
        let part = |(after, before): (&u64, &u64)| (after - before) as f64 / elapsed;
        [0, 1].map(|way| self.took[way].iter().zip(&before[way]).map(part).collect())
    }

    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.round();
        }
    }
}

/// What each flow gets of a worker.
fn fair(flows: &[Demand], worker: f64) -> Vec<f64> {
    let demands: Vec<_> = flows.iter().map(|(weight, wants)| due::Demand::of(*weight, *wants)).collect();
    due::divide(&demands, worker)
}

/// The same with tenants. What a tenant's guests send and what they receive are two groups.
fn fair_among_tenants(flows: &[Demand], whose: &[Option<usize>], worker: f64) -> Vec<f64> {
    let demands: Vec<_> = flows.iter().map(|(weight, wants)| due::Demand::of(*weight, *wants)).collect();
    let tenant = |group: usize| due::Demand::of(tenant_weight(group as u32 % TENANTS), f64::INFINITY);
    let tenants: Vec<_> = (0..2 * TENANTS as usize).map(tenant).collect();
    due::divide_among(&demands, &tenants, whose, worker)
}

/// The group of a tenant's flows in a direction.
fn group(direction: usize, tenant: Option<u32>) -> Option<usize> {
    tenant.map(|tenant| (tenant + TENANTS * direction as u32) as usize)
}

/// Ten guests of a tenant are flooded, and a guest without one sends.
#[test]
fn a_flood_at_many_guests_of_a_tenant_gets_no_more_than_the_tenants_weight() {
    let mut worker = Worker::with_tenants(&[(1, 9.0)], &[(100, 0.3); 10], [&[None], &[Some(0); 10]]);
    let [sent, received] = worker.shares();
    let all: f64 = received.iter().sum();
    let part = all / (all + sent[0]);
    assert!((part - 0.5).abs() < 0.02, "{part}");
    assert!(received.iter().all(|part| (part / all - 0.1).abs() < 0.02), "{received:?}");
}

#[test]
fn a_flood_from_outside_gets_no_more_than_its_weight() {
    // Guest 0 is flooded with twice what the worker can deliver; nine guests have as much as possible to send.
    let mut worker = Worker::new(&[(100, 9.0); 9], &[(100, 2.0)]);
    let [sent, received] = worker.shares();
    // The rest goes into drops.
    let used = sent.iter().sum::<f64>() + received[0];
    assert!((received[0] / used - 0.1).abs() < 0.005, "{received:?} of {used}");
    assert!(sent.iter().all(|sent| (sent / used - 0.1).abs() < 0.005), "{sent:?} of {used}");
}

#[test]
fn a_flood_from_outside_takes_nothing_from_others_that_receive() {
    // Without a limit, half of the frames of guest 1 would be lost in the uplink's ring.
    let mut worker = Worker::new(&[], &[(100, 1.9), (100, 0.1)]);
    let [_, received] = worker.shares();
    assert!(received[1] > 0.95 * 0.1 && worker.refused[1] == 0, "{received:?}");
}

#[test]
fn nothing_is_refused_while_the_worker_has_time() {
    for (senders, receivers) in [
        (&[(1, 0.3)][..], &[(1, 0.2), (100, 0.4)][..]),
        (&[], &[(1, 0.98)]),
        (&[(10_000, 0.5), (10_000, 0.2)], &[(1, 0.25)]),
    ] {
        let mut worker = Worker::new(senders, receivers);
        worker.run(Nanos(SECOND));
        assert_eq!(worker.refused.iter().sum::<u64>(), 0);
    }
}

#[test]
fn a_limit_ends_with_the_load_that_needed_it() {
    let mut worker = Worker::new(&[(100, 9.0)], &[(100, 2.0)]);
    worker.run(Nanos(SECOND));
    (worker.senders, worker.receivers) = (vec![(100, 0.0)], vec![(100, 0.6)]);
    worker.came = vec![worker.due((100, 0.6))];
    worker.run(Nanos(SECOND));
    let before = worker.refused.clone();
    worker.run(Nanos(SECOND));
    assert_eq!(worker.refused, before);
}

#[test]
fn a_new_tenant_has_no_limit_of_a_former_one() {
    let mut worker = Worker::with_tenants(&[(1, 9.0)], &[(100, 0.3); 10], [&[None], &[Some(0); 10]]);
    worker.run(Nanos(SECOND));
    let (guest, owner) = (PortId(0), worker.owner(1, 0));
    let takes_more = |inflow: &mut Inflow| {
        inflow.remove(guest);
        inflow.received(guest, owner, SECOND / 10);
        inflow.admits(guest)
    };
    assert!(!takes_more(&mut worker.inflow));
    worker.inflow.remove_tenant(TenantId(0));
    assert!(takes_more(&mut worker.inflow));
}

/// Cases found at random, whose second to last sender once got all that it wants.
#[test]
fn a_sender_that_wants_a_little_more_than_its_part_gets_no_more() {
    let cases: [(&[Demand], &[Demand]); 2] =
        [(&[(2, 0.622), (2, 1.675)], &[]), (&[(2, 0.148), (2, 0.623), (1, 1.927)], &[(1, 0.072)])];
    for (senders, receivers) in cases {
        let [sent, received] = Worker::new(senders, receivers).shares();
        let flows: Vec<Demand> = senders.iter().chain(receivers).copied().collect();
        for (due, found) in fair(&flows, 1.0).iter().zip(sent.iter().chain(&received)) {
            assert!((found - due).abs() < 0.01, "{found}, not {due}: {sent:?}, {received:?}");
        }
    }
}

fn flows(most: f64) -> impl Strategy<Value = Vec<Demand>> {
    proptest::collection::vec((1u32..10, 0.01..most), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(48) })]

    #[test]
    fn all_flows_of_tenants_share_the_worker(
        senders in flows(2.0),
        receivers in flows(1.0),
        tenants in proptest::collection::vec(proptest::option::of(0..TENANTS), 10),
    ) {
        let of = [&tenants[..senders.len()], &tenants[5..5 + receivers.len()]];
        let mut worker = Worker::with_tenants(&senders, &receivers, of);
        let [sent, received] = worker.shares();
        let used: f64 = sent.iter().chain(&received).sum();
        let flows: Vec<Demand> = senders.iter().chain(&receivers).copied().collect();
        let whose = |direction: usize| of[direction].iter().map(move |tenant| group(direction, *tenant));
        let due = fair_among_tenants(&flows, &whose(0).chain(whose(1)).collect::<Vec<_>>(), used);
        for ((due, found), flow) in due.iter().zip(sent.iter().chain(&received)).zip(&flows) {
            prop_assert!((found - due).abs() < 0.025, "{flow:?} got {found}, not {due}: {flows:?}, {of:?}, {sent:?}, {received:?}");
        }
    }

    /// However often rings run empty: also a sender that wants a little more than its part gets no more than that.
    #[test]
    fn senders_get_their_parts_exactly(senders in flows(2.0), tenants in proptest::collection::vec(proptest::option::of(0..TENANTS), 5)) {
        let [sent, _] = Worker::new(&senders, &[]).shares();
        for ((due, found), demand) in fair(&senders, sent.iter().sum()).iter().zip(&sent).zip(&senders) {
            prop_assert!((found - due).abs() < 0.005, "{demand:?} got {found}, not {due}: {senders:?}, {sent:?}");
        }
        let of = &tenants[..senders.len()];
        let [sent, _] = Worker::with_tenants(&senders, &[], [of, &[]]).shares();
        let whose: Vec<_> = of.iter().map(|tenant| group(0, *tenant)).collect();
        for ((due, found), flow) in fair_among_tenants(&senders, &whose, sent.iter().sum()).iter().zip(&sent).zip(&senders) {
            prop_assert!((found - due).abs() < 0.005, "{flow:?} got {found}, not {due}: {senders:?}, {of:?}, {sent:?}");
        }
    }

    #[test]
    fn all_flows_share_the_worker(senders in flows(2.0), receivers in flows(1.0)) {
        let mut worker = Worker::new(&senders, &receivers);
        let [sent, received] = worker.shares();
        // Drops take time as well.
        let used: f64 = sent.iter().chain(&received).sum();
        let flows: Vec<Demand> = senders.iter().chain(&receivers).copied().collect();
        for ((due, found), demand) in fair(&flows, used).iter().zip(sent.iter().chain(&received)).zip(&flows) {
            prop_assert!((found - due).abs() < 0.01, "{demand:?} got {found}, not {due}: {flows:?}, {sent:?}, {received:?}");
        }
    }
}
