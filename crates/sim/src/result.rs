//! A simulation's result file.

use crate::flow::Tally;
use crate::outcome::{Outcome, Second, VifOutcome};
use crate::scenario::Scenario;
use fairlane_core::time::SECOND;
use fairlane_report::{Axis, Figure, ResultFile, Series, stats};
use hdrhistogram::Histogram;

/// Most vifs whose shares are drawn.
const DRAWN: usize = 32;

/// Most vifs that are named in a warning.
const NAMED: usize = 8;

/// The quantiles of waits that are metrics.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)];

/// Part of its guarantee that a vif may lack: the scheduler counts whole frames.
const SLACK: f64 = 0.99;

impl Outcome {
    /// The result of this simulation of `scenario`, without settings.
    pub fn result(&self, scenario: &Scenario) -> ResultFile {
        let mut result = ResultFile::new(&scenario.name);
        result.machine("simulation");
        for (index, traffic) in scenario.traffic.iter().enumerate() {
            self.add_traffic(&mut result, scenario, &traffic.name, index);
        }
        let names =
            |prefix: &'static str| scenario.traffic.iter().map(move |traffic| format!("{prefix}/{}", traffic.name));
        result.figure(Figure::lines("Throughput").series(names("rate")).y("throughput"));
        result.figure(
            Figure::lines("Waits")
                .series(names("wait"))
                .x("part of the frames")
                .y("time until arrival")
                .caption("From a frame's making until it arrived, by the part of the frames that waited less."),
        );
        self.add_shares(&mut result);
        self.add_guarantees(&mut result, scenario);
        for sentence in &self.refused {
            result.warn(sentence);
        }
        for (reason, frames) in self.drops() {
            result.value(&format!("drops/{reason}"), frames as f64, "frames");
        }
        result.value("frames", self.made() as f64, "frames");
        result.value("arrived", self.arrived() as f64, "frames");
        result.value("waiting", self.waiting as f64, "frames");
        result.value("events", self.events as f64, "");
        result
    }

    fn add_traffic(&self, result: &mut ResultFile, scenario: &Scenario, name: &str, index: usize) {
        let (tally, flows) = (&self.tallies[index], &self.flows[index]);
        let seconds = scenario.interval.as_secs_f64();
        let whole = (scenario.end().0 / scenario.interval.0) as usize;
        let rates = tally.intervals.iter().take(whole).zip(1u32..);
        let rates = rates.map(|(bytes, number)| [f64::from(number) * seconds, *bytes as f64 * 8e-6 / seconds]);
        result.series(Series::new(&format!("rate/{name}"), "Mbit/s", Axis::time()).group(name).points(rates));
        let waits = Series::new(&format!("wait/{name}"), "ms", Axis::new("part", "%")).group(name);
        result.series(waits.points(curve(&tally.waits)));
        let bytes: u64 = flows.iter().sum();
        result.value(&format!("{name}/rate"), bytes as f64 * 8e-6 / self.seconds, "Mbit/s");
        let (made, arrived) = tally.settled;
        // Frames that are on their way when counting begins and ends make up for each other.
        let lost = 1.0 - arrived as f64 / made as f64;
        result.value(&format!("{name}/missing"), 100.0 * lost.max(0.0), "%");
        add_times(result, &format!("{name}/wait"), &tally.waits);
        add_times(result, &format!("{name}/trip"), &tally.trips);
        add_times(result, &format!("{name}/received"), &tally.received);
        if flows.len() > 1 {
            let flows: Vec<f64> = flows.iter().map(|bytes| *bytes as f64).collect();
            result.value(&format!("{name}/jain"), stats::jain(&flows).unwrap_or(f64::NAN), "");
        }
        add_losses(result, name, tally);
    }

    /// Shares beside what is due, and guarantees that were not kept.
    fn add_shares(&self, result: &mut ResultFile) {
        let vifs = || self.hosts.iter().flat_map(|host| host.vifs.iter().map(move |vif| (host, vif)));
        let of_due: Vec<f64> = vifs().filter_map(|(_, vif)| Some(vif.share / vif.due?)).collect();
        if !of_due.is_empty() {
            result.value("jain_of_due", stats::jain(&of_due).unwrap_or(f64::NAN), "");
            let farthest = vifs().filter_map(|(_, vif)| Some((vif.share - vif.due?).abs())).fold(0.0, f64::max);
            result.value("off_due", farthest, "");
        }
        let guaranteed = vifs().filter(|(_, vif)| vif.min_rate > 0).count();
        let broken: Vec<_> = vifs().filter(|(_, vif)| vif.is_below_guarantee()).collect();
        if guaranteed > 0 {
            result.value("guarantees_broken", broken.len() as f64, "vifs");
        }
        for (host, vif) in broken.iter().take(NAMED) {
            let above = host.vifs.iter().filter(|other| other.due.is_some_and(|due| other.share > due * 1.01));
            let mut above: Vec<&VifOutcome> = above.collect();
            above.sort_by(|a, b| b.sent_rate.total_cmp(&a.sent_rate));
            let above: Vec<&str> = above.iter().take(NAMED).map(|other| other.name.as_str()).collect();
            let who = if above.is_empty() { String::new() } else { format!("; above their due: {}", above.join(", ")) };
            result.warn(format!(
                "Host {}: vif {} sent {:.3} of {:.3} Mbit/s guaranteed, and had more to send{who}.",
                host.name,
                vif.name,
                vif.sent_rate / 1e6,
                vif.min_rate as f64 / 1e6
            ));
        }
        let drawn: Vec<_> = vifs().filter(|(_, vif)| vif.due.is_some()).collect();
        if !(1..=DRAWN).contains(&drawn.len()) {
            return;
        }
        let shares = Series::new("share", "", Axis::new("vif", "")).group("share");
        let dues = Series::new("due", "", Axis::new("vif", "")).group("due").expected();
        let numbered = || drawn.iter().map(|(_, vif)| vif).zip(0u32..);
        result.series(shares.points(numbered().map(|(vif, number)| [f64::from(number), vif.share])));
        result.series(dues.points(numbered().map(|(vif, number)| [f64::from(number), vif.due.unwrap_or(f64::NAN)])));
        let several = self.hosts.len() > 1;
        let name = |(host, vif): &(&crate::HostOutcome, &VifOutcome)| {
            if several { format!("{}/{}", host.name, vif.name) } else { vif.name.clone() }
        };
        result.figure(
            Figure::bars("Shares")
                .series(["share", "due"])
                .categories(drawn.iter().map(name))
                .y("part of the link")
                .caption("Of what the link's guests sent; due is what weights give to those that sent."),
        );
    }
}

impl Outcome {
    /// What each tenant sent on all hosts together, second by second, beside its guarantee.
    fn add_guarantees(&self, result: &mut ResultFile, scenario: &Scenario) {
        for (guarantee, seconds) in scenario.guarantees.iter().zip(&self.guarantees) {
            let tenant = &guarantee.tenant;
            let series = |kind: &str| Series::new(&format!("{kind}/{tenant}"), "Mbit/s", Axis::time()).group(kind);
            let points = |of: fn(&Second) -> f64| {
                seconds.iter().zip(1u32..).map(move |(second, number)| [f64::from(number), of(second) / 1e6])
            };
            result.series(series("tenant").points(points(|second| second.sent)));
            result.series(series("in_force").points(points(|second| second.in_force as f64)));
            let due =
                seconds.iter().zip(1u32..).map(|(_, number)| [f64::from(number), guarantee.min_rate as f64 / 1e6]);
            result.series(series("guaranteed").expected().points(due));
            result.figure(
                Figure::lines(&format!("Tenant {tenant}"))
                    .series(["tenant", "in_force", "guaranteed"].map(|kind| format!("{kind}/{tenant}")))
                    .y("on all hosts")
                    .caption("What its guests sent, what hosts guaranteed to them at the end of each second, and the guarantee."),
            );
            let settled = scenario.settle.0.div_ceil(SECOND) as usize;
            let counted = seconds.get(settled..).unwrap_or_default();
            let unmet = |second: &Second| second.wanted && second.sent < SLACK * guarantee.min_rate as f64;
            let longest =
                counted.chunk_by(|a, b| unmet(a) == unmet(b)).filter(|run| unmet(&run[0])).map(<[Second]>::len);
            result.value(
                &format!("tenant/{tenant}/unmet"),
                counted.iter().filter(|second| unmet(second)).count() as f64,
                "s",
            );
            result.value(&format!("tenant/{tenant}/unmet_longest"), longest.max().unwrap_or(0) as f64, "s");
        }
    }
}

impl VifOutcome {
    /// Whether it has more to send, and does not get what is guaranteed to it.
    pub fn is_below_guarantee(&self) -> bool {
        self.waits && self.sent_rate < SLACK * self.min_rate as f64
    }
}

fn add_losses(result: &mut ResultFile, name: &str, tally: &Tally) {
    for (what, frames) in [
        ("lost_in_fabric", tally.lost_in_fabric),
        ("refused_by_guest", tally.refused_by_guest),
        ("retransmitted", tally.retransmitted),
        ("late", tally.late),
        ("reset", tally.reset),
    ] {
        if frames > 0 {
            let unit = if matches!(what, "late" | "reset") { "flows" } else { "frames" };
            result.value(&format!("{name}/{what}"), frames as f64, unit);
        }
    }
}

/// The mean of times, and their quantiles.
fn add_times(result: &mut ResultFile, name: &str, times: &Histogram<u64>) {
    if !times.is_empty() {
        result.value(&format!("{name}_mean"), times.mean() / 1e6, "ms");
        for (quantile, part) in QUANTILES {
            result.value(&format!("{name}_{quantile}"), times.value_at_quantile(part) as f64 / 1e6, "ms");
        }
    }
}

/// The quantiles of times in milliseconds, finer toward the end.
fn curve(times: &Histogram<u64>) -> Vec<[f64; 2]> {
    let even = (0..100).map(|percent| f64::from(percent) / 100.0);
    let parts = even.chain([0.992, 0.994, 0.996, 0.998, 0.999, 1.0]).filter(|_| !times.is_empty());
    parts.map(|part| [100.0 * part, times.value_at_quantile(part) as f64 / 1e6]).collect()
}
