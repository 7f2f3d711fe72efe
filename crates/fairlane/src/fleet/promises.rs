//! What of a policy is not true: guarantees and shares that are not met, by the rules of the alerts in `deploy/prometheus`.

use crate::figures;
use fairlane_core::partition::{MEASURE, PERIOD};
use fairlane_core::time::Nanos;
use fairlane_engine::reading::{Reading, VifReading};
use fairlane_engine::snapshot::Snapshot;
use fairlane_fleet::Promise;

/// Part of what is due that counts as met.
const ENOUGH: f64 = 0.9;

/// Frames that wait longer, on average, wait because their vif gets too little. One that has nothing more to send misses nothing.
const WAITING: u64 = 1_000_000;

/// How often promises are judged, in the backend's time: a look may come a little early.
const JUDGE: Nanos = Nanos(PERIOD.0 - MEASURE.0 / 2);

/// What is not met: guaranteed rates, and shares below due.
type Unmet = (Vec<Promise>, Vec<Promise>);

/// Judges promises once a second: not met is what was not met in two seconds, one after the other.
#[derive(Default)]
pub(super) struct Judge {
    last: Option<Snapshot>,
    /// What was not met in the last second.
    unmet: Unmet,
    /// What was not met in the second before, either.
    again: Unmet,
}

impl Judge {
    /// What is not met, by a look at the backend, or if there is none to look at.
    pub(super) fn look(&mut self, now: Option<&Snapshot>) -> Unmet {
        // A backend that was started anew begins with its time.
        let since = self.last.as_ref().zip(now).and_then(|(last, now)| now.time.checked_sub(last.time));
        if since.is_none_or(|since| since >= JUDGE.0) {
            let last = std::mem::replace(&mut self.last, now.cloned());
            let reading = last.as_ref().zip(now).and_then(|(last, now)| Reading::between(last, now));
            let unmet = reading.map(|reading| (broken(&reading), below_due(&reading)));
            let before = std::mem::replace(&mut self.unmet, unmet.unwrap_or_default());
            self.again = (both(&self.unmet.0, &before.0), both(&self.unmet.1, &before.1));
        }
        self.again.clone()
    }
}

/// Those of `now` that were there before.
fn both(now: &[Promise], before: &[Promise]) -> Vec<Promise> {
    now.iter().filter(|promise| before.iter().any(|other| other.to == promise.to)).cloned().collect()
}

/// Guaranteed rates of vifs and tenants that are not met although frames wait.
fn broken(reading: &Reading) -> Vec<Promise> {
    let missed = |to: String, min_rate: u64, sent: f64| {
        let is = format!("sends {}, less than its min_rate of {}", figures::rate(sent), figures::rate(min_rate as f64));
        (sent < ENOUGH * min_rate as f64).then_some(Promise { to, is })
    };
    let vif = |vif: &VifReading| {
        missed(format!("vif {}", vif.seen.name), vif.seen.min_rate, vif.sent_rate).filter(|_| waits([vif]))
    };
    let of_tenants = reading.of_tenants().into_iter().filter_map(|((name, link), vifs)| {
        let tenant = reading.tenants.iter().find(|tenant| tenant.seen.name == name)?;
        let sent = vifs.iter().map(|vif| vif.sent_rate).sum();
        let to = if reading.links.len() > 1 { format!("tenant {name} on {link}") } else { format!("tenant {name}") };
        missed(to, tenant.seen.min_rate_on(link), sent).filter(|_| waits(vifs))
    });
    reading.vifs.iter().filter_map(vif).chain(of_tenants).collect()
}

/// Vifs that get less of their link than their weight gives them, although their frames wait and no limit of their own says so.
fn below_due(reading: &Reading) -> Vec<Promise> {
    let below = |vif: &VifReading| {
        let (due, share, seen) = (vif.due?, vif.seen.share, &vif.seen);
        let limited = seen.max_rate.is_some_and(|limit| vif.sent_rate > ENOUGH * limit as f64);
        let is = format!("has {share:.3} of {}, and {due:.3} are due", seen.link);
        (share < ENOUGH * due && !limited && waits([vif])).then(|| Promise { to: format!("vif {}", seen.name), is })
    };
    reading.vifs.iter().filter_map(below).collect()
}

/// Whether frames of these vifs wait.
fn waits<'a>(vifs: impl IntoIterator<Item = &'a VifReading>) -> bool {
    let of = |vif: &VifReading| (vif.waited, vif.waits.buckets.iter().sum::<u64>());
    let (waited, frames) = vifs.into_iter().map(of).fold((0, 0), |all, vif| (all.0 + vif.0, all.1 + vif.1));
    // Of one that is not served at all no wait has ended.
    waited > WAITING * frames.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_engine::Waiting;
    use fairlane_engine::snapshot::{LinkState, PortState, TenantState, VifState};

    /// A backend after so many seconds, in each of which each of two vifs, of the tenant `red`, sent so much and waited so long.
    fn after(seconds: u64, vifs: [(u64, u64, f64); 2], min_rate: u64, of_tenant: u64) -> Snapshot {
        let link = LinkState { name: "lan".to_owned(), by_weight: true, ..LinkState::default() };
        let vif = |(index, (bytes, wait, share)): (usize, (u64, u64, f64))| {
            let mut waiting = Waiting::default();
            (0..seconds).for_each(|_| waiting.record(Nanos(wait)));
            VifState {
                name: format!("v{index}"),
                link: "lan".to_owned(),
                tenant: Some("red".to_owned()),
                weight: 100,
                share,
                min_rate,
                waiting,
                port: PortState { sent_bytes: bytes * seconds, ..PortState::default() },
                ..VifState::default()
            }
        };
        let tenant = TenantState { name: "red".to_owned(), weight: 100, min_rate: of_tenant, ..TenantState::default() };
        Snapshot {
            time: 1_000_000_000 * (seconds + 1),
            links: vec![link],
            tenants: vec![tenant],
            vifs: vifs.into_iter().enumerate().map(vif).collect(),
            ..Snapshot::default()
        }
    }

    /// A second of it.
    fn second(vifs: [(u64, u64, f64); 2], min_rate: u64, of_tenant: u64) -> Reading {
        let at = |seconds| after(seconds, vifs, min_rate, of_tenant);
        Reading::between(&at(0), &at(1)).expect("a second has passed")
    }

    fn to(promises: Vec<Promise>) -> Vec<String> {
        promises.into_iter().map(|promise| promise.to).collect()
    }

    #[test]
    fn not_met_is_what_was_not_met_in_two_seconds() {
        let at = |seconds| after(seconds, [(1_000_000, 5_000_000, 0.5), (1_200_000, 5_000_000, 0.5)], 9_000_000, 0);
        let mut judge = Judge::default();
        let mut look = |now: Option<&Snapshot>| to(judge.look(now).0);
        assert_eq!([0, 1].map(|seconds| look(Some(&at(seconds)))), [[""; 0]; 2]);
        assert_eq!(look(Some(&at(2))), ["vif v0"]);
        // A look in between says the same.
        assert_eq!(look(Some(&Snapshot { time: at(2).time + MEASURE.0, ..at(2) })), ["vif v0"]);
        assert_eq!(look(Some(&at(3))), ["vif v0"]);
        // A backend that was started anew has met everything so far, and so has none.
        assert_eq!([0, 1].map(|seconds| look(Some(&at(seconds)))), [[""; 0]; 2]);
        assert_eq!(look(Some(&at(2))), ["vif v0"]);
        assert_eq!(look(None), [""; 0]);
    }

    #[test]
    fn a_guarantee_is_broken_only_for_those_whose_frames_wait() {
        let seen = second([(1_000_000, 5_000_000, 0.5), (1_000_000, 10_000, 0.5)], 10_000_000, 0);
        assert_eq!(to(broken(&seen)), ["vif v0"]);
        assert_eq!(broken(&seen)[0].is, "sends 8.0Mbit/s, less than its min_rate of 10.0Mbit/s");
        let met = second([(1_200_000, 5_000_000, 0.5), (1_200_000, 5_000_000, 0.5)], 10_000_000, 0);
        assert_eq!(broken(&met), []);
    }

    #[test]
    fn who_is_not_served_at_all_waits() {
        let mut seen = second([(0, 0, 0.0), (1_000_000, 10_000, 1.0)], 10_000_000, 0);
        seen.vifs[0].waits = Waiting::default();
        assert_eq!(broken(&seen), []);
        seen.vifs[0].waited = 900_000_000;
        assert_eq!(to(broken(&seen)), ["vif v0"]);
    }

    #[test]
    fn a_tenants_guests_meet_its_guarantee_together() {
        let guests = [(1_000_000, 5_000_000, 0.5), (1_000_000, 5_000_000, 0.5)];
        assert_eq!(broken(&second(guests, 0, 17_000_000)), []);
        assert_eq!(to(broken(&second(guests, 0, 20_000_000))), ["tenant red"]);
        // Each link has its own.
        let mut seen = second(guests, 0, 20_000_000);
        seen.links.push(seen.links[0].clone());
        seen.links[1].seen.name = "dmz".to_owned();
        seen.vifs[1].seen.link = "dmz".to_owned();
        seen.tenants[0].seen.min_rate_on.insert("dmz".to_owned(), 7_000_000);
        assert_eq!(to(broken(&seen)), ["tenant red on lan"]);
    }

    #[test]
    fn who_waits_and_has_less_than_due_is_below() {
        let seen = second([(1_000_000, 5_000_000, 0.2), (4_000_000, 5_000_000, 0.8)], 0, 0);
        assert_eq!(to(below_due(&seen)), ["vif v0"]);
        assert_eq!(below_due(&seen)[0].is, "has 0.200 of lan, and 0.500 are due");
        let content = second([(1_000_000, 10_000, 0.2), (4_000_000, 5_000_000, 0.8)], 0, 0);
        assert_eq!(below_due(&content), []);
    }
}
