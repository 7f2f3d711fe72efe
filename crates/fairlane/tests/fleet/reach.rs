//! How long a change takes to reach a thousand agents.

use crate::missing;
use crate::stage::{HOSTS, Stage};
use fairlane_fleet::{Fleet, Host, Hosts, Look, Refusal, Revision};
use futures_util::future::{join, join_all};
use libtest_mimic::{Completion, Failed};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Hosts that are processes, a backend and an agent each.
const REAL: usize = 20;

/// Agents in all. The others are in one process, with a connection each.
const ALL: usize = 1000;

/// Changes that are measured.
const CHANGES: usize = 10;

/// A host that takes every policy.
struct Simulated;

impl Host for Simulated {
    fn policy(&self) -> Option<String> {
        Some("# policy".to_owned())
    }

    fn apply(&mut self, _: &str) -> Result<usize, Refusal> {
        Ok(1)
    }

    fn look(&mut self) -> Look {
        Look::default()
    }

    fn guarantee(&mut self, _: &str, _: Option<&BTreeMap<String, u64>>) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Changes all policies at once, and prints how long it takes until hosts have reported that theirs is in force.
pub(crate) fn a_change_reaches_a_thousand_agents() -> Result<Completion, Failed> {
    let mut stage = match Stage::new() {
        Ok(stage) => stage,
        Err(error) => return missing::skip_or_fail(error),
    };
    (HOSTS.len()..REAL).for_each(|number| stage.add_host(&format!("h{}", number + 1)));
    let access = stage.access();
    stage.begin(move || {
        let follow =
            async |number| fairlane_fleet::follow(&access, &format!("s{number}"), &mut Simulated, &mut |_| {}).await;
        let followers = join_all((REAL..ALL).map(follow));
        let ended = fairlane_fleet::run(followers);
        panic!("an agent ended: {:?}", ended.first());
    });
    let mut times: Vec<Duration> = stage.with_store(|fleet| async move {
        let mut hosts = Hosts::open(&fleet).await.unwrap();
        while hosts.reports().values().filter(|report| report.state.revision.is_some()).count() < ALL {
            hosts.next().await.unwrap();
        }
        let mut times = Vec::new();
        for change in 0..CHANGES {
            times.extend(reach(&fleet, &mut hosts, change).await);
        }
        times
    });
    times.sort_unstable();
    let quantile = |part: f64| times[((times.len() as f64 * part).ceil() as usize).max(1) - 1].as_secs_f64();
    println!(
        "{CHANGES} changes of {ALL} hosts, {REAL} of them processes: p50 {:.2} s, p99 {:.2} s, longest {:.2} s",
        quantile(0.5),
        quantile(0.99),
        quantile(1.0)
    );
    Ok(Completion::Completed)
}

/// Makes one change of all policies. Returns how long each host took.
async fn reach(fleet: &Fleet, hosts: &mut Hosts, change: usize) -> Vec<Duration> {
    let names: Vec<String> = hosts.reports().keys().cloned().collect();
    let read = async |name: &String| (name.clone(), fleet.policy(name).await.unwrap().unwrap());
    let formers: BTreeMap<String, Revision> = join_all(names.iter().map(read)).await.into_iter().collect();
    let start = Instant::now();
    let put = async |(name, former): (&String, &Revision)| {
        fleet.put(name, &format!("{}\n# change {change}", former.text), former.number).await.unwrap();
    };
    let seen = async {
        let mut times = BTreeMap::new();
        while times.len() < ALL {
            let name = hosts.next().await.unwrap();
            // Nobody else changes policies.
            if hosts.reports()[&name].state.revision > Some(formers[&name].number) {
                times.entry(name).or_insert_with(|| start.elapsed());
            }
        }
        times.into_values().collect()
    };
    join(join_all(formers.iter().map(put)), seen).await.1
}
