//! Prometheus metrics: a snapshot as a page.

use crate::due::Due;
use crate::snapshot::{EarlyState, PortState, ReceiveState, Snapshot, TenantState, VifState};
use crate::waiting::Waiting;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

/// Shorter waits share a bucket: 2^10 ns is a microsecond.
const FIRST_BUCKET: usize = 10;

/// A snapshot as OpenMetrics text.
pub fn page(snapshot: Arc<Snapshot>) -> String {
    let mut registry = Registry::with_prefix("fairlane");
    registry.register_collector(Box::new(Page(snapshot)));
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("a string takes all that is written");
    page
}

#[derive(Debug)]
struct Page(Arc<Snapshot>);

/// The labels of a series.
type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let vifs = || self.0.vifs.iter().map(|vif| (vif_labels(vif), &vif.port));
        traffic(&mut encoder, "vif", vifs)?;
        let uplinks = || {
            let links = self.0.links.iter();
            links.filter_map(|link| Some((vec![("link", link.name.as_str())], link.uplink.as_ref()?)))
        };
        traffic(&mut encoder, "uplink", uplinks)?;

        let help = "Part, 0 to 1, of what the link's vifs sent to the uplink in the last second";
        self.gauge(&mut encoder, "vif_share_ratio", help, None, |vif| Some(vif.share))?;
        let due = Due::of(&self.0);
        let help = "Part, 0 to 1, of the link that weights give to a vif that uses it";
        self.gauge(&mut encoder, "vif_due_ratio", help, None, |vif| due.of_vif(vif))?;
        let help = "Time in which the link's worker moved frames";
        let busy = Unit::Seconds;
        let mut family = encoder.encode_descriptor("link_busy", help, Some(&busy), MetricType::Counter)?;
        for link in &self.0.links {
            let labels = vec![("link", link.name.as_str())];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&(link.busy as f64 / 1e9), None)?;
        }
        let help = "1 for the tenant of a vif that has one";
        let mut family = encoder.encode_descriptor("vif_tenant", help, None, MetricType::Gauge)?;
        for vif in &self.0.vifs {
            if let Some(tenant) = &vif.tenant {
                let labels = [vif_labels(vif), vec![("tenant", tenant.as_str())]].concat();
                family.encode_family(&labels)?.encode_gauge(&1_i64)?;
            }
        }
        let help = "Part, 0 to 1, of what the link's vifs sent to the uplink in the last second";
        let mut family = encoder.encode_descriptor("tenant_share_ratio", help, None, MetricType::Gauge)?;
        for ((tenant, link), share) in self.0.tenant_shares() {
            family.encode_family(&vec![("tenant", tenant), ("link", link)])?.encode_gauge(&share)?;
        }
        grants(&mut encoder, "vif", "", || self.0.vifs.iter().map(|vif| (vif_labels(vif), Grant::of_vif(vif))))?;
        grants(&mut encoder, "vif_rx", " of what its guest receives", || {
            self.0.vifs.iter().map(|vif| (vif_labels(vif), Grant::of_guest(vif)))
        })?;
        grants(&mut encoder, "tenant", "", || {
            self.0.tenants.iter().map(|tenant| (tenant_labels(tenant), Grant::of_tenant(tenant)))
        })?;
        let help = "Rate that the policy guarantees on a link in place of that on each";
        let bytes = Unit::Other("bytes_per_second".to_owned());
        let mut family = encoder.encode_descriptor("tenant_link_min_rate", help, Some(&bytes), MetricType::Gauge)?;
        for tenant in &self.0.tenants {
            for (link, min_rate) in &tenant.min_rate_on {
                let labels = vec![("tenant", tenant.name.as_str()), ("link", link.as_str())];
                family.encode_family(&labels)?.encode_gauge(&(*min_rate as f64 / 8.0))?;
            }
        }
        grants(&mut encoder, "tenant_rx", " of what its guests receive", || {
            self.0.tenants.iter().map(|tenant| (tenant_labels(tenant), Grant::of_tenants_guests(tenant)))
        })?;

        let help = "Bytes that wait for room in a guest's ring";
        let queued = |vif: &VifState| Some(vif.receive.queued_bytes as f64);
        self.gauge(&mut encoder, "vif_rx_queue", help, Some(&Unit::Bytes), queued)?;
        let help = "Frames for a guest that were marked because of congestion (ECN)";
        let mut family = encoder.encode_descriptor("vif_rx_marked_frames", help, None, MetricType::Counter)?;
        for vif in &self.0.vifs {
            count(&mut family, &vif_labels(vif), vif.receive.marked_frames)?;
        }

        let help = "Bytes of which early ack keeps a copy; absent where it is off";
        let retained = |vif: &VifState| Some(vif.early_ack.as_ref()?.retained as f64);
        self.gauge(&mut encoder, "vif_early_ack_retained", help, Some(&Unit::Bytes), retained)?;
        let help = "Bytes beyond which nothing more is acknowledged early; absent where it is off";
        let limit = |vif: &VifState| Some(vif.early_ack.as_ref()?.limit as f64);
        self.gauge(&mut encoder, "vif_early_ack_retained_limit", help, Some(&Unit::Bytes), limit)?;
        let help = "1 while data are acknowledged early; absent where it is off";
        let engaged = |vif: &VifState| Some(f64::from(u8::from(vif.early_ack.as_ref()?.engaged)));
        self.gauge(&mut encoder, "vif_early_ack_engaged", help, None, engaged)?;
        let help = "TCP flows that early ack knows; absent where it is off";
        let flows = |vif: &VifState| Some(f64::from(vif.early_ack.as_ref()?.flows));
        self.gauge(&mut encoder, "vif_early_ack_flows", help, None, flows)?;
        let help = "1 if its capture ended before it was stopped: at its limit, or on a full disk";
        let ended = |vif: &VifState| Some(f64::from(u8::from(vif.capture.as_ref()?.ended.is_some())));
        self.gauge(&mut encoder, "vif_capture_ended", help, None, ended)?;
        let help = "What early ack did: ACKs sent for the guest, ACKs of the guest raised and suppressed, segments sent to the \
                    guest again, senders reset";
        self.early_ack(&mut encoder, "vif_early_ack_events", help, "event", |early| {
            vec![
                ("sent", early.early_acks),
                ("raised", early.raised),
                ("suppressed", early.suppressed),
                ("retransmitted", early.retransmissions),
                ("reset", early.resets),
            ]
        })?;
        let help = "TCP flows that were left to their two ends, by reason";
        self.early_ack(&mut encoder, "vif_early_ack_fallbacks", help, "reason", |early| {
            early.fallbacks.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
        })?;

        let help = "Time that frames waited in their ring to be served";
        let mut family = encoder.encode_descriptor("vif_waiting", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for vif in &self.0.vifs {
            waiting(family.encode_family(&vif_labels(vif))?, &vif.waiting)?;
        }
        let help = "How long its next frame has waited to be served by now; 0 if none waits";
        let unserved = |vif: &VifState| Some(vif.unserved as f64 / 1e9);
        self.gauge(&mut encoder, "vif_unserved", help, Some(&Unit::Seconds), unserved)?;
        let help = "Time that frames waited for room in a guest's ring";
        let mut family =
            encoder.encode_descriptor("vif_rx_waiting", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for vif in &self.0.vifs {
            waiting(family.encode_family(&vif_labels(vif))?, &vif.receive.waiting)?;
        }
        Ok(())
    }
}

impl Page {
    /// One value for each vif that has it.
    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl Fn(&VifState) -> Option<f64>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for vif in &self.0.vifs {
            if let Some(value) = value(vif) {
                family.encode_family(&vif_labels(vif))?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

impl Page {
    /// Counters of early ack that differ in one more label.
    fn early_ack(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Fn(&EarlyState) -> Vec<(&str, u64)>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for vif in &self.0.vifs {
            for (value, number) in vif.early_ack.iter().flat_map(&values) {
                count(&mut family, &[vif_labels(vif).as_slice(), &[(label, value)]].concat(), number)?;
            }
        }
        Ok(())
    }
}

/// What the policy grants. Rates are in bits a second.
struct Grant {
    weight: u32,
    min_rate: u64,
    max_rate: Option<u64>,
    max_frames: Option<u64>,
}

impl Grant {
    fn of_vif(&VifState { weight, min_rate, max_rate, max_frames, .. }: &VifState) -> Grant {
        Grant { weight, min_rate, max_rate, max_frames }
    }

    fn of_guest(vif: &VifState) -> Grant {
        let ReceiveState { weight, min_rate, max_rate, max_frames, .. } = vif.receive;
        Grant { weight, min_rate, max_rate, max_frames }
    }

    fn of_tenant(&TenantState { weight, min_rate, max_rate, max_frames, .. }: &TenantState) -> Grant {
        Grant { weight, min_rate, max_rate, max_frames }
    }

    fn of_tenants_guests(tenant: &TenantState) -> Grant {
        let TenantState { rx_weight, rx_min_rate, rx_max_rate, rx_max_frames, .. } = *tenant;
        Grant { weight: rx_weight, min_rate: rx_min_rate, max_rate: rx_max_rate, max_frames: rx_max_frames }
    }
}

/// What the policy grants to vifs or tenants, in one direction.
fn grants<'a, I>(encoder: &mut DescriptorEncoder<'_>, kind: &str, what: &str, all: impl Fn() -> I) -> fmt::Result
where
    I: Iterator<Item = (Labels<'a>, Grant)>,
{
    let bytes = Unit::Other("bytes_per_second".to_owned());
    let frames = Unit::Other("per_second".to_owned());
    let rate = |bits: u64| bits as f64 / 8.0;
    let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: &dyn Fn(&Grant) -> Option<f64>| {
        let (name, help) = (format!("{kind}_{name}"), format!("{help}{what}"));
        let mut family = encoder.encode_descriptor(&name, &help, unit, MetricType::Gauge)?;
        for (labels, grant) in all() {
            if let Some(value) = value(&grant) {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    };
    gauge("weight", "Relative share that the policy grants", None, &|grant| Some(f64::from(grant.weight)))?;
    gauge("min_rate", "Rate that the policy guarantees", Some(&bytes), &|grant| Some(rate(grant.min_rate)))?;
    gauge("max_rate", "Highest rate that the policy allows, if any,", Some(&bytes), &|grant| grant.max_rate.map(rate))?;
    let most = |grant: &Grant| Some(grant.max_frames? as f64);
    gauge("max_frames", "Most frames that the policy allows, if any,", Some(&frames), &most)
}

fn vif_labels(vif: &VifState) -> Labels<'_> {
    vec![("vif", &vif.name), ("link", &vif.link)]
}

fn tenant_labels(tenant: &TenantState) -> Labels<'_> {
    vec![("tenant", &tenant.name)]
}

/// What vifs and uplinks have in common: bytes, frames, drops, state.
fn traffic<'a, I>(encoder: &mut DescriptorEncoder<'_>, kind: &str, ports: impl Fn() -> I) -> fmt::Result
where
    I: Iterator<Item = (Labels<'a>, &'a PortState)>,
{
    let with = |labels: &Labels<'a>, key, value: &'a str| [labels.as_slice(), &[(key, value)]].concat();
    let help = "Bytes of frames, by direction as the port's peer sees it";
    let name = kind.to_owned();
    let mut family = encoder.encode_descriptor(&name, help, Some(&Unit::Bytes), MetricType::Counter)?;
    for (labels, port) in ports() {
        count(&mut family, &with(&labels, "direction", "sent"), port.sent_bytes)?;
        count(&mut family, &with(&labels, "direction", "received"), port.received_bytes)?;
    }
    let help = "Frames, by direction as the port's peer sees it";
    let name = format!("{kind}_frames");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    for (labels, port) in ports() {
        count(&mut family, &with(&labels, "direction", "sent"), port.sent_frames)?;
        count(&mut family, &with(&labels, "direction", "received"), port.received_frames)?;
    }
    let help = "Frames the port's peer sent that were dropped, by reason";
    let name = format!("{kind}_drops");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    for (labels, port) in ports() {
        for (reason, drops) in &port.drops {
            count(&mut family, &with(&labels, "reason", reason), *drops)?;
        }
    }
    let help = "1 for the state the port is in";
    let name = format!("{kind}_state");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    for (labels, port) in ports() {
        family.encode_family(&with(&labels, "state", port.state.name()))?.encode_gauge(&1_i64)?;
    }
    Ok(())
}

fn count(family: &mut MetricEncoder<'_>, labels: &Labels<'_>, value: u64) -> fmt::Result {
    family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn waiting(mut encoder: MetricEncoder<'_>, waiting: &Waiting) -> fmt::Result {
    let (short, longer) = waiting.buckets.split_at(FIRST_BUCKET + 1);
    let (last, longer) = longer.split_last().unwrap_or((&0, &[]));
    let bound = |bits: usize| (1_u64 << bits) as f64 / 1e9;
    let mut buckets = vec![(bound(FIRST_BUCKET), short.iter().sum())];
    // Two buckets are merged: factors of four are fine enough for a page that is scraped often.
    for (index, pair) in longer.chunks(2).enumerate() {
        buckets.push((bound(FIRST_BUCKET + 2 * index + pair.len()), pair.iter().sum()));
    }
    buckets.push((f64::INFINITY, *last));
    let count = waiting.buckets.iter().sum();
    encoder.encode_histogram::<NoLabelSet>(waiting.sum as f64 / 1e9, count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::CaptureReport;
    use crate::snapshot::{ReceiveState, State};
    use fairlane_core::time::Nanos;

    /// The reference page.
    const REFERENCE: &str = include_str!("../../../docs/reference/metrics.md");

    /// A vif with all optional parts, and these waits.
    fn snapshot(waiting: Waiting) -> Snapshot {
        let vif = VifState {
            name: "a".to_owned(),
            link: "b".to_owned(),
            tenant: Some("c".to_owned()),
            weight: 1,
            min_rate: 8_000,
            max_frames: Some(100),
            share: 0.25,
            receive: ReceiveState {
                weight: 20,
                max_rate: Some(16_000),
                queued_bytes: 124,
                marked_frames: 5,
                waiting: waiting.clone(),
                ..ReceiveState::default()
            },
            waiting,
            early_ack: Some(EarlyState {
                engaged: true,
                retained: 1448,
                suppressed: 7,
                fallbacks: [("reset".to_owned(), 2)].into(),
                ..EarlyState::default()
            }),
            capture: Some(CaptureReport { frames: 1, bytes: 2, left_out: 4, ended: None }),
            port: PortState { state: State::Up, drops: [("too_large".to_owned(), 3)].into(), ..PortState::default() },
            ..VifState::default()
        };
        let tenant = TenantState {
            name: "c".to_owned(),
            weight: 7,
            min_rate_on: [("b".to_owned(), 4_000)].into(),
            max_rate: Some(8_000),
            rx_max_rate: Some(80_000),
            max_frames: Some(9),
            rx_max_frames: Some(10),
            ..TenantState::default()
        };
        Snapshot { tenants: vec![tenant], vifs: vec![vif], ..Snapshot::default() }
    }

    #[test]
    fn every_metric_is_in_the_reference() {
        let page = page(snapshot(Waiting::default()).into());
        let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for family in families.filter_map(|family| family.split(' ').next()) {
            let told = [format!("`{family}`"), format!("`{family}_total`")];
            assert!(told.iter().any(|name| REFERENCE.contains(name)), "{family} is not in docs/reference/metrics.md");
        }
    }

    #[test]
    fn waits_are_counted_up_to_each_bound() {
        let mut waiting = Waiting::default();
        for wait in [0, 1_000, 1_023, 1_024, 5_000, 1_000_000, u64::from(u32::MAX) * 8] {
            waiting.record(Nanos(wait));
        }
        let page = page(snapshot(waiting).into());
        for line in [
            r#"fairlane_vif_drops_total{vif="a",link="b",reason="too_large"} 3"#,
            r#"fairlane_vif_min_rate_bytes_per_second{vif="a",link="b"} 1000.0"#,
            r#"fairlane_vif_early_ack_retained_bytes{vif="a",link="b"} 1448.0"#,
            r#"fairlane_vif_early_ack_engaged{vif="a",link="b"} 1.0"#,
            r#"fairlane_vif_early_ack_events_total{vif="a",link="b",event="suppressed"} 7"#,
            r#"fairlane_vif_early_ack_fallbacks_total{vif="a",link="b",reason="reset"} 2"#,
            r#"fairlane_vif_rx_weight{vif="a",link="b"} 20.0"#,
            r#"fairlane_vif_rx_max_rate_bytes_per_second{vif="a",link="b"} 2000.0"#,
            r#"fairlane_vif_max_frames_per_second{vif="a",link="b"} 100.0"#,
            r#"fairlane_vif_tenant{vif="a",link="b",tenant="c"} 1"#,
            r#"fairlane_tenant_share_ratio{tenant="c",link="b"} 0.25"#,
            r#"fairlane_tenant_weight{tenant="c"} 7.0"#,
            r#"fairlane_tenant_link_min_rate_bytes_per_second{tenant="c",link="b"} 500.0"#,
            r#"fairlane_tenant_max_rate_bytes_per_second{tenant="c"} 1000.0"#,
            r#"fairlane_tenant_rx_max_rate_bytes_per_second{tenant="c"} 10000.0"#,
            r#"fairlane_tenant_rx_max_frames_per_second{tenant="c"} 10.0"#,
            r#"fairlane_vif_rx_queue_bytes{vif="a",link="b"} 124.0"#,
            r#"fairlane_vif_rx_marked_frames_total{vif="a",link="b"} 5"#,
            r#"fairlane_vif_rx_waiting_seconds_count{vif="a",link="b"} 7"#,
            r#"fairlane_vif_due_ratio{vif="a",link="b"} 1.0"#,
            r#"fairlane_vif_capture_ended{vif="a",link="b"} 0.0"#,
            r#"fairlane_vif_share_ratio{vif="a",link="b"} 0.25"#,
            r#"fairlane_vif_waiting_seconds_bucket{le="0.000001024",vif="a",link="b"} 3"#,
            r#"fairlane_vif_waiting_seconds_bucket{le="0.000004096",vif="a",link="b"} 4"#,
            r#"fairlane_vif_waiting_seconds_bucket{le="0.001048576",vif="a",link="b"} 6"#,
            r#"fairlane_vif_waiting_seconds_bucket{le="17.179869184",vif="a",link="b"} 6"#,
            r#"fairlane_vif_waiting_seconds_bucket{le="+Inf",vif="a",link="b"} 7"#,
            r#"fairlane_vif_waiting_seconds_count{vif="a",link="b"} 7"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
