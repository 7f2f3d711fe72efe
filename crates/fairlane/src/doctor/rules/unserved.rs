//! A vif of Fairlane's whose next frame waits for a second or more although no guest has to make room for it: why, as far as settings
//! and rates tell.

use super::fairlane::FULL;
use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::percent;
use crate::figures;
use fairlane_engine::reading::{LinkReading, Reading, VifReading};
use fairlane_policy::units::format_rate;

/// The name of every link's uplink among what vifs wait for.
const UPLINK: &str = "uplink";

/// Bits of the largest frame, which a limit lets pass as a whole: 64 KiB of IP with an Ethernet header.
const LARGEST: f64 = 8.0 * 65_550.0;

/// Frames that it counts as: segments of 1,460 bytes.
const SEGMENTS: f64 = 45.0;

/// Bits of a frame without segmentation offload.
const FRAME: f64 = 8.0 * 1514.0;

/// Why a vif is not served, how sure that is, and what to change.
type Cause = (Confidence, String, Vec<Remedy>);

pub(super) fn find(reading: &Reading, vif: &VifReading) -> Option<Finding> {
    let seen = &vif.seen;
    let nanos = seen.not_served()?;
    if seen.waits_for.as_ref().is_some_and(|port| port != UPLINK) {
        return None;
    }
    let link = reading.links.iter().find(|link| link.seen.name == seen.link)?;
    let this = Unserved { reading, link, vif, seconds: nanos as f64 / 1e9 };
    let cause = this.uplink().or_else(|| this.limit()).or_else(|| this.tenant()).or_else(|| this.guarantees());
    let cause = cause.or_else(|| this.turns()).or_else(|| this.worker());
    let (confidence, why, change) = cause.unwrap_or_else(|| this.weight());
    Some(Finding {
        cause: "vif-unserved",
        confidence,
        limits: 1.0,
        seen: format!(
            "vif {} is {}, while link {} sends {}",
            seen.name,
            figures::state(seen),
            link.seen.name,
            figures::rate(link.out_rate)
        ),
        why,
        change,
    })
}

/// A vif that is not served.
struct Unserved<'a> {
    reading: &'a Reading,
    link: &'a LinkReading,
    vif: &'a VifReading,
    seconds: f64,
}

impl Unserved<'_> {
    /// The vifs of its link, itself included.
    fn of_link(&self) -> impl Iterator<Item = &VifReading> {
        self.reading.vifs.iter().filter(|vif| vif.seen.link == self.link.seen.name)
    }

    /// The link's uplink has no room, and sent nothing.
    fn uplink(&self) -> Option<Cause> {
        let full = self.of_link().any(|vif| vif.seen.waits_for.as_deref() == Some(UPLINK));
        (full && self.link.out_rate == 0.0).then(|| {
            let name = &self.link.seen.name;
            let why = format!("the uplink of link {name} is full and sends nothing: it is down, or what follows it is");
            let change =
                "check its device (ip -s link show) and what is behind it; of a wire, the link at its other end";
            (Confidence::Likely, why, vec![Remedy::by_hand(change)])
        })
    }

    /// Its own limit, if that lets the largest frame pass no more often.
    fn limit(&self) -> Option<Cause> {
        let seen = &self.vif.seen;
        let key = self.low(seen.max_rate, seen.max_frames)?;
        let change = format!("if the limit is not intended: fairlane ctl set {} {key}=none", seen.name);
        let why = format!("its {key} holds it back: after a large frame it has to wait that long");
        Some((Confidence::Likely, why, vec![Remedy::by_hand(change)]))
    }

    /// The key of a limit that is low enough.
    fn low(&self, rate: Option<u64>, frames: Option<u64>) -> Option<&'static str> {
        let lasts = |amount: f64, limit: Option<u64>| limit.is_some_and(|limit| amount / limit as f64 >= self.seconds);
        let limits = [("max_rate", LARGEST, rate), ("max_frames", SEGMENTS, frames)];
        limits.into_iter().find(|(_, amount, limit)| lasts(*amount, *limit)).map(|(key, ..)| key)
    }

    /// Its tenant's limit, if that is as low or used up by the tenant's other vifs.
    fn tenant(&self) -> Option<Cause> {
        let name = self.vif.seen.tenant.as_ref()?;
        let tenant = &self.reading.tenants.iter().find(|tenant| tenant.seen.name == *name)?.seen;
        let of_tenant = || self.of_link().filter(|vif| vif.seen.tenant.as_ref() == Some(name));
        let used = |limit: Option<u64>, sent: f64| limit.is_some_and(|limit| sent > FULL * limit as f64);
        let key = if used(tenant.max_rate, of_tenant().map(|vif| vif.sent_rate).sum()) {
            "max_rate"
        } else if used(tenant.max_frames, of_tenant().map(|vif| vif.sent_frames).sum()) {
            "max_frames"
        } else {
            self.low(tenant.max_rate, tenant.max_frames)?
        };
        let change =
            format!("if the limit is not intended: fairlane ctl set {name} {key}=none; or raise the vif's weight");
        let why = format!("the {key} of its tenant {name} holds all of the tenant's vifs back together");
        Some((Confidence::Likely, why, vec![Remedy::by_hand(change)]))
    }

    /// Guarantees of others, if those take everything.
    fn guarantees(&self) -> Option<Cause> {
        let owed = |vif: &&VifReading| {
            let tenant = self.reading.tenants.iter().find(|tenant| vif.seen.tenant.as_ref() == Some(&tenant.seen.name));
            vif.seen.min_rate > 0 || tenant.is_some_and(|tenant| tenant.seen.min_rate_on(&vif.seen.link) > 0)
        };
        let sent = |vif: &VifReading| vif.sent_rate;
        let (all, of_others): (f64, f64) =
            (self.of_link().map(sent).sum(), self.of_link().filter(owed).map(sent).sum());
        (all > 0.0 && of_others > FULL * all).then(|| {
            let why = format!(
                "those with a min_rate are served first, and send {} of what the link sends",
                percent(of_others / all)
            );
            let name = &self.vif.seen.name;
            let change = [
                format!("give it a guarantee of its own: fairlane ctl set {name} min_rate=RATE"),
                "lower the others' min_rate, or raise the link's rate if the wire has more".to_owned(),
            ];
            (Confidence::Likely, why, change.map(Remedy::by_hand).into())
        })
    }

    /// With wrr: the turns of the others, if they last as long.
    fn turns(&self) -> Option<Cause> {
        let link = &self.link.seen;
        let rate = link.rate.filter(|_| link.scheduler == "wrr" && link.by_weight)?;
        let others = self.of_link().filter(|vif| vif.seen.name != self.vif.seen.name && vif.sent_rate > 0.0);
        let frames: f64 = others.map(|vif| f64::from(vif.seen.weight)).sum();
        (frames * FRAME / rate as f64 >= self.seconds).then(|| {
            let why = format!(
                "with wrr a weight is the frames of a turn: {frames} of 1,514 bytes come before its own, and take {:.1} s at {}",
                frames * FRAME / rate as f64,
                format_rate(rate)
            );
            let change = format!("smaller weights in the same ratio; or fairlane ctl set {} scheduler=fair", link.name);
            (Confidence::Likely, why, vec![Remedy::by_hand(change)])
        })
    }

    /// The worker, if it has no time to spare.
    fn worker(&self) -> Option<Cause> {
        (self.link.busy > FULL).then(|| {
            let why = format!(
                "the worker moves frames in {} of its time, which guests share by weight",
                percent(self.link.busy)
            );
            let change = "move vifs to another link: several links use several cores; or raise the vif's weight";
            (Confidence::Possible, why, vec![Remedy::by_hand(change)])
        })
    }

    /// Nothing else: its turn does not come.
    fn weight(&self) -> Cause {
        let due = self.vif.due.unwrap_or_default();
        let why = format!("nothing else is seen to hold it back, and its weight gives it {} of the link", percent(due));
        let change = format!("fairlane ctl set {} weight=WEIGHT, or min_rate=RATE", self.vif.seen.name);
        (Confidence::Possible, why, vec![Remedy::by_hand(change)])
    }
}
