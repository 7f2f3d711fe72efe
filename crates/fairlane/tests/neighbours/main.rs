//! A frontend that breaks the rules of vhost-user, and honest guests beside it that must not notice: a real daemon, real guests, and a
//! hostile frontend that does one deed after the other.
//!
//! A guest on the attacked link floods it, and so does one on a link like it where nobody attacks. What the other sends is what there
//! is to share in that time, whatever else this computer does, and half of it is the attacker's if it sends so much itself.
//! `--nocapture` shows what is left of the rest.

mod attack;
mod deeds;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
mod huge;
mod stage;

use attack::{Accomplice, Attack};
use deeds::{DEEDS, Deed};
use fairlane_engine::snapshot::{Snapshot, State};
use fairlane_lab::Error;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use stage::{ATTACKER, GUESTS, Stage, uplink, vif};
use std::env;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::Duration;

/// What an honest guest keeps of its share at least.
const KEPT: f64 = 0.95;

/// How long an attack lasts before shares are measured, how long one is measured, and how many are.
const LEAD: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_millis(300);
const WINDOWS: u32 = 4;

/// How long the attacker rests before a deed, so that it is heard again whatever it said before: its part is a hundredth of the time, and
/// 30 ms is the most that it is ever beyond.
const REST: Duration = Duration::from_secs(3);

/// How long the honest guests send, in seconds: some longer than is measured, so that their rings are full all the while.
const SENDING: f64 = 1.7;

/// Nice values: of daemon and guests, which other work of this computer is not to hold up, and of the attacker, which is other work.
const OURS: i32 = -10;
const THEIRS: i32 = 0;

fn main() -> ExitCode {
    // Before there are threads and processes, which inherit it.
    renice(OURS);
    let required = env::var_os("FAIRLANE_GUESTS").is_some_and(|value| value == "required");
    let test = move || match no_deed_harms() {
        Ok(()) => Ok(Completion::Completed),
        Err(Error::Missing(what)) if !required => {
            eprintln!("SKIPPED: {what}");
            Ok(Completion::ignored_with(what))
        }
        Err(error) => Err(Failed::from(error.to_string())),
    };
    let tests = vec![Trial::ignorable_test("no_deed_of_a_frontend_harms_its_neighbours", test)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Gives the calling thread a nice value, where it may have that.
fn renice(value: i32) {
    let thread = nix::unistd::gettid().to_string();
    let mut command = std::process::Command::new("renice");
    let _ =
        command.args(["-n", &value.to_string(), "-p", &thread]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn no_deed_harms() -> Result<(), Error> {
    let huge = huge::reserve(8);
    let mut stage = Stage::build()?;
    let accomplice = Accomplice::start(stage.socket(stage::ACCOMPLICE));
    eprintln!("{:<28} {:>6} {:>6} {:>7}", "share kept beside", "median", "least", "times");
    let mut harm = Vec::new();
    for deed in DEEDS {
        if deed.huge && huge.is_none() {
            eprintln!("SKIPPED: {}: there are no huge pages (root reserves them)", deed.name);
            continue;
        }
        // Once more where it seems to do harm: a computer that gave its CPUs to others at the wrong moment looks the same.
        let mut seen = Seen::beside(&mut stage, deed)?;
        eprintln!("{}", seen.line(deed));
        if !seen.harm.is_empty() {
            eprintln!("once more: {:?}", seen.harm);
            seen = Seen::beside(&mut stage, deed)?;
            eprintln!("{}", seen.line(deed));
        }
        harm.extend(seen.harm.into_iter().map(|what| format!("{}: {what}", deed.name)));
    }
    drop(accomplice);
    assert!(harm.is_empty(), "{harm:#?}");
    stage.stop()
}

/// What was seen beside a deed.
struct Seen {
    /// What the honest guest kept of its share, a window each, from the least.
    kept: Vec<f64>,
    /// How often the deed was done.
    times: u64,
    harm: Vec<String>,
}

impl Seen {
    /// Has a deed done while honest guests send and ask.
    fn beside(stage: &mut Stage, deed: &'static Deed) -> Result<Seen, Error> {
        thread::sleep(REST);
        let before = stage.snapshot();
        let traffic = stage.traffic(SENDING)?;
        let attack = Attack::begin(deed, stage.socket(ATTACKER));
        thread::sleep(LEAD);
        let mut snapshots = vec![stage.snapshot()];
        for _ in 0..WINDOWS {
            thread::sleep(WINDOW);
            snapshots.push(stage.snapshot());
        }
        let (times, card) = attack.end();
        let after = stage.snapshot();
        let mut harm = traffic.losses()?;
        drop(card);
        let mut kept: Vec<f64> = snapshots.windows(2).map(|pair| kept(&pair[0], &pair[1])).collect();
        kept.sort_by(f64::total_cmp);
        let mut check = |holds: bool, what: String| harm.extend((!holds).then_some(what));
        check(stage.lives(), "the daemon ended".to_owned());
        check(times > 0, "it was not done once".to_owned());
        check(median(&kept) >= KEPT, format!("of its share {:.3} is left to the sender", median(&kept)));
        for guest in GUESTS {
            let [before, after] = [&before, &after].map(|snapshot| vif(snapshot, guest));
            check(after.state == State::Up, format!("{guest} is {:?}", after.state));
            let (had, has) = (&before.drops, &after.drops);
            check(had == has, format!("{guest} had drops of {had:?}, and has {has:?}"));
        }
        let state = &vif(&after, ATTACKER).state;
        let ends = match (state, deed.reason) {
            (State::Disabled { reason }, Some(expected)) => reason.contains(expected),
            (State::Up, None) => true,
            (State::Waiting, None) => deed.unmet,
            _ => false,
        };
        check(ends, format!("the attacker is {state:?} in the end"));
        Ok(Seen { kept, times, harm })
    }

    fn line(&self, deed: &Deed) -> String {
        format!("{:<28} {:>6.3} {:>6.3} {:>7}", deed.name, median(&self.kept), self.kept[0], self.times)
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
