//! The load for scheduler benchmarks, and a plain deficit round robin as the baseline.
//!
//! Weights are random from 1 to 10000; each service is as many random frames of 64 to 1500 bytes as a budget allows.
//! For a given number of ports all schedulers see the same sequence. With tenants, there are as many of them as each of
//! them has ports.

use fairlane_core::sched::{After, Budget, Cost, Next, Scheduler, SchedulerKind, Share, build, build_for_tenants};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_core::{PortId, TenantId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::hint::black_box;

const LINK_RATE: u64 = 10_000_000_000;

/// Services drawn in advance: a power of two, so that wrapping needs no division.
const SERVICES: usize = 4096;

/// Builds a scheduler without ports.
type Build = fn() -> Box<dyn Scheduler>;

/// The measured schedulers: name and constructor.
pub(crate) const SCHEDULERS: [(&str, Build); 5] = [
    ("fair", || build(SchedulerKind::Fair, Some(LINK_RATE), Nanos::from_millis(10))),
    ("tenants", || build_for_tenants(Some(LINK_RATE), Nanos::from_millis(10))),
    ("wrr", || build(SchedulerKind::Wrr { prioritize: true }, Some(LINK_RATE), Nanos::from_millis(10))),
    ("netback", || {
        build(SchedulerKind::Netback { refill: Nanos::from_millis(50) }, Some(LINK_RATE), Nanos::from_millis(10))
    }),
    ("drr", || Box::new(PlainDrr::default())),
];

/// A scheduler whose ports are all backlogged.
pub(crate) struct Backlogged {
    scheduler: Box<dyn Scheduler>,
    services: Box<[Cost; SERVICES]>,
    turn: usize,
    now: Nanos,
}

impl Backlogged {
    /// Adds the ports and makes 20 decisions per port.
    pub(crate) fn new(mut scheduler: Box<dyn Scheduler>, ports: u32) -> Backlogged {
        let mut random = StdRng::seed_from_u64(u64::from(ports));
        let tenants = ports.isqrt();
        for tenant in (0..tenants).map(TenantId) {
            scheduler.configure_tenant(tenant, share(&mut random), Nanos(0));
        }
        for port in (0..ports).map(PortId) {
            scheduler.assign(port, Some(TenantId(port.0 % tenants)));
            scheduler.configure(port, share(&mut random), Nanos(0));
            scheduler.activate(port, Nanos(0));
        }
        let mut backlogged = Backlogged { scheduler, services: services(&mut random), turn: 0, now: Nanos(0) };
        (0..20 * ports).for_each(|_| backlogged.decide());
        backlogged
    }

    /// One decision: `next` and `charge`.
    pub(crate) fn decide(&mut self) {
        let Next::Serve(port, budget) = self.scheduler.next(self.now) else { unreachable!("all ports are backlogged") };
        black_box(budget);
        let cost = self.services[self.turn % SERVICES];
        self.turn += 1;
        self.now += Nanos(cost.bytes * 8 * SECOND / LINK_RATE);
        self.scheduler.charge(port, cost, After::Backlogged, self.now);
    }
}

/// A share of random weight.
fn share(random: &mut StdRng) -> Share {
    Share::of_weight(random.random_range(1..=10_000))
}

/// Services of random frames, each as large as a budget allows.
fn services(random: &mut StdRng) -> Box<[Cost; SERVICES]> {
    let service = |_: usize| {
        let mut cost = Cost::default();
        while cost.bytes < 16_384 && cost.frames < 32 {
            cost.bytes += random.random_range(64..=1500);
            cost.frames += 1;
        }
        Cost { uplink_bytes: cost.bytes, nanos: cost.frames * 100, ..cost }
    };
    Box::new(std::array::from_fn(service))
}

/// Plain deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): the least that a fair decision can cost.
#[derive(Default)]
struct PlainDrr {
    quantum: Vec<u64>,
    deficit: Vec<i64>,
    round: VecDeque<u32>,
}

impl Scheduler for PlainDrr {
    fn configure(&mut self, port: PortId, share: Share, _now: Nanos) {
        assert_eq!(port.index(), self.quantum.len());
        self.quantum.push(u64::from(share.weight) * 1500);
        self.deficit.push(0);
    }

    fn remove(&mut self, _port: PortId) {}

    fn activate(&mut self, port: PortId, _now: Nanos) {
        self.deficit[port.index()] = self.quantum[port.index()] as i64;
        self.round.push_back(port.0);
    }

    fn next(&mut self, _now: Nanos) -> Next {
        let Some(&port) = self.round.front() else { return Next::Idle };
        Next::Serve(PortId(port), Budget { bytes: 16_384, frames: 32 })
    }

    fn charge(&mut self, port: PortId, cost: Cost, _after: After, _now: Nanos) {
        let deficit = &mut self.deficit[port.index()];
        *deficit -= cost.bytes as i64;
        if *deficit <= 0 {
            *deficit += self.quantum[port.index()] as i64;
            self.round.rotate_left(1);
        }
    }

    /// Nothing to do: the port is still at the head of the round.
    fn defer(&mut self, _port: PortId, _now: Nanos) {}
}
