//! A frontend that breaks the rules of vhost-user, and honest guests beside it that must not notice: a real daemon, real guests, and a
//! hostile frontend that does one deed after the other.
//!
//! Deeds follow each other without a rest, each at a vif that nobody had before; what honest guests send beside one is still on its way
//! when the next begins.
//!
//! A guest on the attacked link floods it, and so does one on a link like it where nobody attacks. What the other sends is what there
//! is to share in that time, whatever else this computer does, and half of it is the attacker's if it sends so much itself.
//! `--nocapture` shows what is left of the rest.
//!
//! That is where the worker has time to spare; [`worker`] is about a link on which its time is all there is to share.

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
use hostile::deeds::{DEEDS, Deed};
use hostile::{ACCOMPLICE, OURS, mac, renice};
use libtest_mimic::{Arguments, Trial};
use stage::{GUESTS, Stage, Traffic, uplink};
use std::collections::VecDeque;
use std::ops::RangeFrom;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use support::guest_test;

/// What an honest guest keeps of its share at least.
const KEPT: f64 = 0.95;

/// How long an attack lasts before shares are measured, how long one is measured, and how many are.
const LEAD: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_millis(300);
const WINDOWS: u32 = 4;

/// How long the honest guests send, in seconds: some longer than is measured, so that their rings are full all the while.
const SENDING: f64 = 2.2;

fn main() -> ExitCode {
    // Before there are threads and processes, which inherit it.
    renice(OURS);
    let worker = || {
        worker::no_deed_takes_more_than_its_part();
        Ok(())
    };
    let tests = vec![
        guest_test("no_deed_of_a_frontend_harms_its_neighbours", no_deed_harms),
        Trial::test("no_deed_takes_more_than_its_part_of_a_worker", worker),
    ];
    // One after the other: both measure.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn no_deed_harms() -> Result<(), Error> {
    let huge = huge::reserve(8);
    let mut stage = Stage::build(2 * DEEDS.len())?;
    let mut attackers = 0..;
    eprintln!("{:<28} {:>6} {:>6} {:>7}", "share kept beside", "median", "least", "times");
    let possible = |deed: &&Deed| {
        let possible = !deed.huge || huge.is_some();
        if !possible {
            eprintln!("SKIPPED: {}: there are no huge pages (root reserves them)", deed.name);
        }
        possible
    };
    let suspects = harmful(&mut stage, DEEDS.iter().filter(possible), &mut attackers)?;
    // Once more where one seems to do harm: a computer that gave its CPUs to others at the wrong moment looks the same.
    if !suspects.is_empty() {
        eprintln!("once more: {:#?}", words(&suspects));
    }
    let harm = harmful(&mut stage, suspects.iter().map(|(deed, _)| *deed), &mut attackers)?;
    assert!(harm.is_empty(), "{:#?}", words(&harm));
    stage.stop()
}

/// What a deed did to its neighbours, in words.
type Harm = (&'static Deed, Vec<String>);

fn words(harm: &[Harm]) -> Vec<String> {
    harm.iter().map(|(deed, what)| format!("{}: {}", deed.name, what.join(", "))).collect()
}

/// Has deeds done one after the other. Answers those that seem to do harm.
fn harmful(
    stage: &mut Stage,
    deeds: impl Iterator<Item = &'static Deed>,
    attackers: &mut RangeFrom<usize>,
) -> Result<Vec<Harm>, Error> {
    let (mut harmful, mut under_way) = (Vec::new(), VecDeque::new());
    let mut before = stage.daemon.snapshot();
    let mut end = |seen: Seen| {
        let (deed, harm) = seen.end()?;
        if !harm.is_empty() {
            harmful.push((deed, harm));
        }
        Ok(())
    };
    for (deed, attacker) in deeds.zip(attackers) {
        let seen = Seen::beside(stage, deed, &hostile::attacker(attacker), &mut before)?;
        under_way.push_back(seen);
        // What was sent beside earlier ones is there by now.
        if under_way.len() > 3 {
            under_way.pop_front().map_or(Ok(()), &mut end)?;
        }
    }
    under_way.into_iter().try_for_each(end)?;
    Ok(harmful)
}

/// What was seen beside a deed.
struct Seen {
    deed: &'static Deed,
    /// What the honest guest kept of its share, a window each, from the least.
    kept: Vec<f64>,
    /// How often the deed was done.
    times: u64,
    /// Frames of the honest guests that may still be on their way.
    traffic: Traffic,
    harm: Vec<String>,
}

impl Seen {
    /// Has a deed done while honest guests send and ask; `before` is what was shown last.
    fn beside(stage: &mut Stage, deed: &'static Deed, attacker: &str, before: &mut Snapshot) -> Result<Seen, Error> {
        let accomplice = Accomplice::start(stage.socket(ACCOMPLICE), mac(attacker));
        let traffic = stage.traffic(SENDING)?;
        let attack = Attack::begin(deed, stage.socket(attacker), mac(attacker));
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
        check(stage.daemon.lives(), "the daemon ended".to_owned());
        check(times > 0, "it was not done once".to_owned());
        check(median(&kept) >= KEPT, format!("of its share {:.3} is left to the sender", median(&kept)));
        for guest in GUESTS {
            let [before, after] = [before, &after].map(|snapshot| vif(snapshot, guest));
            check(after.state == State::Up, format!("{guest} is {:?}", after.state));
            let (had, has) = (&before.drops, &after.drops);
            check(had == has, format!("{guest} had drops of {had:?}, and has {has:?}"));
        }
        let state = &vif(&after, attacker).state;
        check(deed.ends_in(state), format!("the attacker is {state:?} in the end"));
        *before = after;
        Ok(Seen { deed, kept, times, traffic, harm })
    }

    /// Waits until what was sent is there. Answers what harm was done.
    fn end(mut self) -> Result<Harm, Error> {
        eprintln!("{:<28} {:>6.3} {:>6.3} {:>7}", self.deed.name, median(&self.kept), self.kept[0], self.times);
        self.harm.extend(self.traffic.losses()?);
        Ok((self.deed, self.harm))
    }
}

/// The part of its share that the sender on the attacked link got between two snapshots.
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
