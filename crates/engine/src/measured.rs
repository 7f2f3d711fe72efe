//! What a host measures of its tenants, from which it claims parts of their guarantees ([`fairlane_core::partition`]).

use crate::reading::{Reading, VifReading};
use crate::snapshot::{LinkState, TenantState};
use fairlane_core::partition::Measured;
use std::collections::BTreeMap;

/// Part of the time that frames must wait to wait all the time, and part of a limit at which it holds a vif back.
const ALMOST: f64 = 0.9;

impl Reading {
    /// The vifs of each tenant on each link, by the names of both.
    pub fn of_tenants(&self) -> BTreeMap<(&str, &str), Vec<&VifReading>> {
        let mut places: BTreeMap<_, Vec<&VifReading>> = BTreeMap::new();
        for vif in &self.vifs {
            if let Some(tenant) = &vif.seen.tenant {
                places.entry((tenant.as_str(), vif.seen.link.as_str())).or_default().push(vif);
            }
        }
        places
    }

    /// What was measured of each tenant on each link on which it has vifs, by the names of both.
    pub fn measured(&self) -> BTreeMap<(&str, &str), Measured> {
        let of_place = |((tenant, link), vifs): ((_, _), Vec<&VifReading>)| {
            let seen = &self.tenants.iter().find(|other| other.seen.name == tenant)?.seen;
            let on = &self.links.iter().find(|other| other.seen.name == link)?.seen;
            Some(((tenant, link), self.of_tenant(seen, on, &vifs)))
        };
        self.of_tenants().into_iter().filter_map(of_place).collect()
    }

    fn of_tenant(&self, tenant: &TenantState, link: &LinkState, vifs: &[&VifReading]) -> Measured {
        let sent: f64 = vifs.iter().map(|vif| vif.sent_rate).sum();
        let frames: f64 = vifs.iter().map(|vif| vif.sent_frames).sum();
        let limited = is_at(tenant.max_rate, sent) || is_at(tenant.max_frames, frames);
        let wants_more = !limited && vifs.iter().any(|vif| self.wants_more(vif));
        Measured {
            sent: (!wants_more).then_some(sent as u64),
            floor: vifs.iter().map(|vif| vif.seen.min_rate).sum(),
            room: self.room(link, &tenant.name).min(tenant.max_rate.unwrap_or(u64::MAX)),
        }
    }

    /// What a link has left for a tenant's guarantee.
    fn room(&self, link: &LinkState, tenant: &str) -> u64 {
        let here = || self.vifs.iter().filter(|vif| vif.seen.link == link.name);
        let of_vifs = here().filter(|vif| vif.seen.tenant.is_none()).map(|vif| vif.seen.min_rate);
        let is_other = |other: &&TenantState| {
            other.name != tenant && here().any(|vif| vif.seen.tenant.as_ref() == Some(&other.name))
        };
        let others = self.tenants.iter().map(|other| &other.seen).filter(is_other);
        let guaranteed = of_vifs.chain(others.map(|other| other.min_rate_on(&link.name))).fold(0, u64::saturating_add);
        link.rate.map_or(u64::MAX, |rate| rate.saturating_sub(guaranteed))
    }

    /// Whether a vif's next frame waited all the time, and its own limits do not say so.
    fn wants_more(&self, vif: &VifReading) -> bool {
        let limited = is_at(vif.seen.max_rate, vif.sent_rate) || is_at(vif.seen.max_frames, vif.sent_frames);
        !limited && vif.waited as f64 > ALMOST * self.elapsed as f64
    }
}

fn is_at(limit: Option<u64>, rate: f64) -> bool {
    limit.is_some_and(|limit| rate > ALMOST * limit as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{PortState, Snapshot, VifState};

    /// What is seen after so many seconds of a link of 100 Mbit/s, on which `red` has a vif that sends 10 Mbit/s while its frames wait for
    /// `wait` nanoseconds each second.
    fn snapshot(seconds: u64, wait: u64, change: impl Fn(&mut Snapshot)) -> Snapshot {
        let vif = |name: &str, tenant: Option<&str>, min_rate: u64| VifState {
            name: name.to_owned(),
            link: "lan".to_owned(),
            tenant: tenant.map(str::to_owned),
            min_rate,
            ..VifState::default()
        };
        let tenant = |name: &str, min_rate| TenantState { name: name.to_owned(), min_rate, ..TenantState::default() };
        let link = LinkState { name: "lan".to_owned(), rate: Some(100_000_000), ..LinkState::default() };
        let mut red = vif("web", Some("red"), 1_000_000);
        red.port = PortState { sent_bytes: 1_250_000 * seconds, sent_frames: 1000 * seconds, ..PortState::default() };
        (0..seconds).for_each(|_| red.waiting.record(fairlane_core::time::Nanos(wait)));
        let mut snapshot = Snapshot {
            time: 1_000_000_000 * (seconds + 1),
            links: vec![link],
            tenants: vec![tenant("red", 5_000_000), tenant("blue", 20_000_000), tenant("elsewhere", 70_000_000)],
            vifs: vec![red, vif("db", Some("blue"), 0), vif("own", None, 30_000_000)],
            ..Snapshot::default()
        };
        change(&mut snapshot);
        snapshot
    }

    fn second(wait: u64, change: impl Fn(&mut Snapshot)) -> Measured {
        let [before, after] = [0, 1].map(|seconds| snapshot(seconds, wait, &change));
        let reading = Reading::between(&before, &after).expect("a second has passed");
        let measured = reading.measured();
        assert_eq!(measured.keys().copied().collect::<Vec<_>>(), [("blue", "lan"), ("red", "lan")]);
        measured[&("red", "lan")]
    }

    #[test]
    fn each_link_is_measured_alone() {
        // `db` of `blue` moves to `red`, on another link, where `blue` has another vif.
        let moved = |seen: &mut Snapshot| {
            seen.links.push(LinkState { name: "dmz".to_owned(), rate: Some(40_000_000), ..LinkState::default() });
            seen.tenants[1].min_rate_on.insert("dmz".to_owned(), 1_000_000);
            let db = &mut seen.vifs[1];
            (db.link, db.tenant, db.min_rate) = ("dmz".to_owned(), Some("red".to_owned()), 2_000_000);
            db.port.sent_bytes = 500_000 * (seen.time / 1_000_000_000);
            let other = VifState { name: "other".to_owned(), tenant: Some("blue".to_owned()), ..seen.vifs[1].clone() };
            seen.vifs.push(other);
        };
        let [before, after] = [0, 1].map(|seconds| snapshot(seconds, 950_000_000, moved));
        let reading = Reading::between(&before, &after).expect("a second has passed");
        let measured = reading.measured();
        let on = |link| measured[&("red", link)];
        assert_eq!(on("lan"), Measured { sent: None, floor: 1_000_000, room: 70_000_000 });
        assert_eq!(on("dmz"), Measured { sent: Some(4_000_000), floor: 2_000_000, room: 39_000_000 });
        assert_eq!(measured.len(), 3);
    }

    #[test]
    fn who_waits_all_the_time_would_send_more_unless_a_limit_says_so() {
        let red = second(500_000_000, |_| ());
        assert_eq!(red, Measured { sent: Some(10_000_000), floor: 1_000_000, room: 50_000_000 });
        assert_eq!(second(950_000_000, |_| ()), Measured { sent: None, ..red });
        // One that is not served at all is known by its wait so far.
        assert_eq!(
            second(0, |seen| seen.vifs[0].unserved = 950_000_000 * (seen.time / 2_000_000_000)),
            Measured { sent: None, ..red }
        );
        assert_eq!(second(0, |seen| seen.vifs[0].unserved = 950_000_000), red);
        assert_eq!(second(950_000_000, |seen| seen.vifs[0].max_rate = Some(10_000_000)), red);
        assert_eq!(second(950_000_000, |seen| seen.vifs[0].max_frames = Some(1000)), red);
        let limited = second(950_000_000, |seen| seen.tenants[0].max_rate = Some(11_000_000));
        assert_eq!(limited, Measured { room: 11_000_000, ..red });
        assert_eq!(second(950_000_000, |seen| seen.tenants[0].max_frames = Some(1000)), red);
        assert_eq!(second(0, |seen| seen.links[0].rate = None).room, u64::MAX);
    }
}
