//! A hostile vhost-user frontend must not affect its neighbours: a real daemon, real guests, and a hostile frontend that carries out
//! one attack after the other.
//!
//! Attacks follow each other without pause, each at an unused vif. The frames that honest guests send during one attack may still be
//! in flight when the next begins.
//!
//! A guest on the attacked link floods it, and so does one on an identical link without an attacker. The rate of the second guest
//! is what can be shared in that time, whatever else this machine does; half of it is the attacker's if it sends that much.
//! `--nocapture` shows the share that the first guest kept.
//!
//! On these links, the worker has time to spare. [`worker`] tests a link on which the worker's time is the only shared resource.

#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
#[path = "../hostile/mod.rs"]
mod hostile;
mod huge;
mod stage;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;
mod worker;

use daemon::vif;
use fairlane_engine::snapshot::{Snapshot, State};
use fairlane_lab::Error;
use hostile::attack::{Accomplice, Attack};
use hostile::cases::{CASES, Case};
use hostile::{ACCOMPLICE, OURS, mac, renice};
use libtest_mimic::{Arguments, Trial};
use stage::{GUESTS, Stage, Traffic, uplink};
use std::collections::VecDeque;
use std::ops::RangeFrom;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use support::guest_test;

/// Smallest fraction of its share that an honest guest must keep.
const MIN_KEPT: f64 = 0.95;

/// Duration of an attack before shares are measured, length of a measurement, and number of measurements.
const LEAD: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_millis(300);
const WINDOWS: u32 = 4;

/// How long the honest guests send, in seconds: longer than the measurements, so that their rings stay full.
const SENDING: f64 = 2.2;

fn main() -> ExitCode {
    // Before the first thread and process, which inherit it.
    renice(OURS);
    let worker = || {
        worker::no_attack_takes_more_than_its_share();
        Ok(())
    };
    let tests = vec![
        guest_test("no_attack_of_a_frontend_harms_its_neighbours", no_attack_harms),
        Trial::test("no_attack_takes_more_than_its_share_of_a_worker", worker),
    ];
    // Sequentially, since both measure.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn no_attack_harms() -> Result<(), Error> {
    let huge = huge::reserve(8);
    let mut stage = Stage::build(2 * CASES.len())?;
    let mut attackers = 0..;
    eprintln!("{:<28} {:>6} {:>6} {:>7}", "share kept beside", "median", "least", "times");
    let possible = |case: &&Case| {
        let possible = !case.huge || huge.is_some();
        if !possible {
            eprintln!("SKIPPED: {}: there are no huge pages (root can reserve them)", case.name);
        }
        possible
    };
    let suspects = harmful(&mut stage, CASES.iter().filter(possible), &mut attackers)?;
    // Attacks that seem to do harm are repeated: other work of this machine at the wrong moment looks the same.
    if !suspects.is_empty() {
        eprintln!("repeated: {:#?}", describe(&suspects));
    }
    let harm = harmful(&mut stage, suspects.iter().map(|(case, _)| *case), &mut attackers)?;
    assert!(harm.is_empty(), "{:#?}", describe(&harm));
    stage.stop()
}

/// An attack, and descriptions of the harm it did to its neighbours.
type Harm = (&'static Case, Vec<String>);

fn describe(harm: &[Harm]) -> Vec<String> {
    harm.iter().map(|(case, what)| format!("{}: {}", case.name, what.join(", "))).collect()
}

/// Carries out attacks, one after the other. Returns those that seem to do harm.
fn harmful(
    stage: &mut Stage,
    cases: impl Iterator<Item = &'static Case>,
    attackers: &mut RangeFrom<usize>,
) -> Result<Vec<Harm>, Error> {
    let (mut harmful, mut running) = (Vec::new(), VecDeque::new());
    let mut before = stage.daemon.snapshot();
    let mut end = |observation: Observation| {
        let (case, harm) = observation.end()?;
        if !harm.is_empty() {
            harmful.push((case, harm));
        }
        Ok(())
    };
    for (case, attacker) in cases.zip(attackers) {
        let observation = Observation::during(stage, case, &hostile::attacker(attacker), &mut before)?;
        running.push_back(observation);
        // The frames sent during earlier attacks have arrived by now.
        if running.len() > 3 {
            running.pop_front().map_or(Ok(()), &mut end)?;
        }
    }
    running.into_iter().try_for_each(end)?;
    Ok(harmful)
}

/// What was observed during an attack.
struct Observation {
    case: &'static Case,
    /// The fraction of its share that the honest guest kept, per window, in ascending order.
    kept: Vec<f64>,
    /// How often the attack was carried out.
    times: u64,
    /// Traffic of the honest guests, which may still be in flight.
    traffic: Traffic,
    harm: Vec<String>,
}

impl Observation {
    /// Carries out an attack while honest guests send and ping. `before` is the last snapshot, which is replaced.
    fn during(
        stage: &mut Stage,
        case: &'static Case,
        attacker: &str,
        before: &mut Snapshot,
    ) -> Result<Observation, Error> {
        let accomplice = Accomplice::start(stage.socket(ACCOMPLICE), mac(attacker));
        let traffic = stage.traffic(SENDING)?;
        let attack = Attack::start(case, stage.socket(attacker), mac(attacker));
        thread::sleep(LEAD);
        let mut snapshots = vec![stage.daemon.snapshot()];
        for _ in 0..WINDOWS {
            thread::sleep(WINDOW);
            snapshots.push(stage.daemon.snapshot());
        }
        let (times, card) = attack.end();
        let after = stage.daemon.snapshot();
        drop((accomplice, card));
        let mut kept: Vec<f64> = snapshots.windows(2).map(|pair| kept(&pair[0], &pair[1])).collect();
        kept.sort_by(f64::total_cmp);
        let mut harm = Vec::new();
        let mut check = |holds: bool, what: String| harm.extend((!holds).then_some(what));
        check(stage.daemon.is_running(), "the daemon ended".to_owned());
        check(times > 0, "the attack was not carried out once".to_owned());
        check(median(&kept) >= MIN_KEPT, format!("the sender keeps only {:.3} of its share", median(&kept)));
        for guest in GUESTS {
            let [before, after] = [before, &after].map(|snapshot| vif(snapshot, guest));
            check(after.state == State::Up, format!("{guest} is {:?}", after.state));
            let (had, has) = (&before.drops, &after.drops);
            check(had == has, format!("the drops of {guest} changed from {had:?} to {has:?}"));
        }
        let state = &vif(&after, attacker).state;
        check(case.ends_in(state), format!("the attacker's final state is {state:?}"));
        *before = after;
        Ok(Observation { case, kept, times, traffic, harm })
    }

    /// Waits until all frames have arrived. Returns the harm done.
    fn end(mut self) -> Result<Harm, Error> {
        eprintln!("{:<28} {:>6.3} {:>6.3} {:>7}", self.case.name, median(&self.kept), self.kept[0], self.times);
        self.harm.extend(self.traffic.losses()?);
        Ok((self.case, self.harm))
    }
}

/// The fraction of its share that the sender on the attacked link got between two snapshots.
fn kept(before: &Snapshot, after: &Snapshot) -> f64 {
    let sent = |name| vif(after, name).sent_bytes - vif(before, name).sent_bytes;
    let carried = uplink(after).received_bytes - uplink(before).received_bytes;
    let (own, link) = (sent("sender"), sent("sender-beside"));
    let due = link.saturating_sub(carried - own).max(link / 2);
    own as f64 / due as f64
}

fn median(sorted: &[f64]) -> f64 {
    fairlane_report::stats::median(sorted).unwrap_or(0.0)
}
