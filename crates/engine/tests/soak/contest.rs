//! Guests that always have frames for the uplink, and what each gets of it: shares by weight, guarantees, and no idle time of the
//! link.

use crate::frame::Station;
use crate::ledger::Ledger;
use fairlane_core::sched::SchedulerKind;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_policy::{Link, uplink_queue};

/// Bytes of the most expensive service: a budget, and a frame of the largest size. See `sched::fair`.
const SERVICE: f64 = 16_384.0 + 65_550.0;

/// How many of these a port is ahead or behind at most, in sum: "at most 1.25 L ahead of the fluid and 3.25 L behind it".
const LAG: f64 = 4.5;

/// Frames of a turn of netback's.
const NETBACK_TURN: f64 = 64.0;

/// A guest in a contest.
pub(crate) struct Member {
    pub place: usize,
    /// Bytes of its frames.
    pub len: usize,
    pub to: Station,
    /// Frames and bytes that it had sent to the uplink when the window began.
    before: (u64, u64),
}

/// A contest.
pub(crate) struct Contest {
    pub members: Vec<Member>,
    pub end: Nanos,
    /// Since when nothing changed, and what the uplink had received then.
    since: Nanos,
    before: (u64, u64),
}

impl Contest {
    pub(crate) fn new(members: Vec<(usize, usize, Station)>, end: Nanos, ledger: &Ledger, now: Nanos) -> Contest {
        let member = |(place, len, to)| Member { place, len, to, before: (0, 0) };
        let mut contest =
            Contest { members: members.into_iter().map(member).collect(), end, since: now, before: (0, 0) };
        contest.begin_window(ledger, now);
        contest
    }

    /// Starts to count.
    fn begin_window(&mut self, ledger: &Ledger, now: Nanos) {
        self.since = now;
        self.before = ledger.uplink();
        self.members.retain(|member| ledger.at(member.place).is_some());
        for member in &mut self.members {
            member.before = ledger.at(member.place).expect("it is attached").up;
        }
    }

    /// Checks what each guest got, unless something else was in the way since `excused`. Returns whether it checked.
    pub(crate) fn judge(&mut self, ledger: &Ledger, link: &Link, now: Nanos) -> bool {
        if ledger.excused >= self.since || self.members.iter().any(|member| ledger.at(member.place).is_none()) {
            self.begin_window(ledger, now);
            return false;
        }
        let seconds = now.since(self.since).0 as f64 / SECOND as f64;
        let Some(rate) = link.rate else { return false };
        let possible = rate as f64 / 8.0 * seconds;
        let (_, passed) = ledger.uplink();
        let passed = (passed - self.before.1) as f64;
        let queue = uplink_queue(link.rate) as f64 + 1514.0;
        assert!(passed <= possible + queue, "{passed} bytes passed an uplink that passes {possible} in {seconds} s");
        let shares = self.members.iter().map(|member| {
            let account = ledger.at(member.place).expect("it is attached");
            let (frames, bytes) = (account.up.0 - member.before.0, account.up.1 - member.before.1);
            (member.place, (account.share, account.tenant.as_deref()), frames as f64, bytes as f64)
        });
        let shares: Vec<_> = shares.collect();
        if shares.iter().any(|(_, (share, _), ..)| !share.is_limited()) {
            assert!(passed >= possible - queue, "{passed} bytes passed of {possible} in {seconds} s: {shares:?}");
        }
        if link.scheduler == SchedulerKind::Fair {
            for (place, (share, _), _, bytes) in &shares {
                let floor = share.min_rate as f64 / 8.0;
                let least = floor * seconds - 2.0 * SERVICE - floor * (SERVICE + queue) * 8.0 / rate as f64;
                let limit = share.is_limited();
                assert!(
                    limit || *bytes >= least,
                    "place {place} got {bytes} bytes in {seconds} s, of {least}: {share:?}"
                );
            }
        }
        let free = shares.iter().filter(|(_, (share, _), ..)| !share.is_limited() && share.min_rate == 0);
        let free: Vec<_> = free
            .map(|(place, (share, tenant), frames, bytes)| {
                let weight = f64::from(share.weight);
                let levels = if tenant.is_some() { 2.0 } else { 1.0 };
                let (got, off) = match link.scheduler {
                    SchedulerKind::Fair => (bytes / weight, levels * LAG * SERVICE / weight),
                    SchedulerKind::Wrr { prioritize: true } => (frames / weight, 2.0),
                    SchedulerKind::Wrr { prioritize: false } => (*frames, 2.0),
                    SchedulerKind::Netback { .. } => (*frames, 2.0 * NETBACK_TURN),
                };
                (place, tenant, got, off)
            })
            .collect();
        // What a tenant gets depends on its other guests as well, so only guests of the same one are compared.
        for (one, tenant, got, off) in &free {
            for (other, _, others, others_off) in free.iter().filter(|(_, other, ..)| other == tenant) {
                let kind = link.scheduler;
                let far = (got - others).abs();
                assert!(
                    far <= off + others_off,
                    "{kind:?} gave place {one} {got} and place {other} {others} by weight, in {seconds} s: {shares:?}"
                );
            }
        }
        true
    }
}
