//! The act of a neighbour that waits: one guest is flooded and has a CPU for a third of the time; pings to another guest must not
//! notice.

use super::stage::{PORT, RECEIVER, Stage, sender_address};
use fairlane_lab::{Command, Error, Job, Outcome, interrupt};
use fairlane_load::ping::{self, RoundTrips};
use fairlane_load::{ReceiveSpec, udp};
use fairlane_report::stats::quantile;
use fairlane_report::{About, Axis, Claim, Figure, ResultFile, Series};
use indicatif::ProgressBar;
use std::net::SocketAddr;

/// Its length on the progress bar, in tenths of a second.
pub(super) const LENGTH: u64 = 10 * 2 * CASES.len() as u64 * (SECONDS as u64 + 1);

/// How long pings are sent, in seconds, and their interval, which is neither a divisor nor a multiple of a slice.
pub(super) const SECONDS: f64 = 3.0;
pub(super) const INTERVAL: f64 = 0.0053;

/// How long to wait for the last replies, in seconds.
pub(super) const PATIENCE: f64 = 0.5;

/// The guest that is flooded and waits, and the one that is pinged, by index in [`super::acts::SENDERS`].
pub(super) const FLOODED: usize = 0;
pub(super) const PINGED: usize = 1;

/// What a wait of the flooded guest may add to 90% of the pings of the other, in milliseconds. It waits for 60 ms at a time.
const MAX_ADDED: f64 = 5.0;

/// A flood of the waiting guest.
pub(super) struct Case {
    /// Its name in the result.
    name: &'static str,
    /// Who floods, for people.
    from: &'static str,
    /// The sending guest, by index; none for the receiver at the far end of the wire.
    pub sender: Option<usize>,
    /// Payload bytes of a datagram.
    pub size: usize,
    /// Offered load in bits per second of Ethernet frames.
    pub rate: f64,
}

const CASES: [Case; 2] = [
    // 6,000 small datagrams a second: in 60 ms more than the 256 that a guest's ring holds, and no more than the sender, a guest as
    // well, can send beside the pings.
    Case { name: "outside", from: "from outside", sender: None, size: 200, rate: 6_000.0 * 8.0 * 242.0 },
    Case { name: "guest", from: "by the pinged guest", sender: Some(PINGED), size: 1472, rate: 90e6 },
];

const CAPTION: &str = "Guest a is flooded. When it waits, it alternately runs for 30 ms and waits for 60 ms. Frames for it are \
                       queued meanwhile, so the pings to guest b, through the same link, take no longer.";

/// Runs the act and adds its measurements to the result.
///
/// # Errors
/// A guest ended or failed, or an interrupt arrived.
pub(super) fn run(stage: &Stage, result: &mut ResultFile, progress: &ProgressBar) -> anyhow::Result<()> {
    add(result, |case, waits| {
        progress.set_message(format!(
            "a neighbour that {}, flooded {}",
            if waits { "waits" } else { "runs" },
            case.from
        ));
        let trips = measure(stage, case, waits).map_err(|error| stage.explain(error))?;
        interrupt::check()?;
        progress.inc(LENGTH / 2 / CASES.len() as u64);
        Ok(trips)
    })?;
    let queue = stage.snapshot()?.vifs.into_iter().find(|vif| vif.name != RECEIVER).map(|vif| vif.receive);
    result.setting("neighbour_receive_queue", serde_json::to_value(queue)?);
    Ok(())
}

/// Adds the act as `measure` measures it: pings while a flooded guest runs, or waits.
///
/// # Errors
/// Those of `measure`.
pub(super) fn add(
    result: &mut ResultFile,
    mut measure: impl FnMut(&Case, bool) -> anyhow::Result<RoundTrips>,
) -> anyhow::Result<()> {
    for case in CASES {
        let title = format!("Pings to a guest whose neighbour is flooded {}", case.from);
        let mut names = Vec::new();
        let mut p90 = Vec::new();
        for (word, waits) in [("runs", false), ("waits", true)] {
            let trips = measure(&case, waits)?;
            let name = format!("neighbour/{}/{word}", case.name);
            // A lost ping took longer than any other.
            let times: Vec<f64> = trips.seconds.iter().map(|trip| trip.unwrap_or(PATIENCE) * 1e3).collect();
            let points = times.iter().enumerate().map(|(at, time)| [at as f64 * INTERVAL, *time]);
            result.series(Series::new(&name, "ms", Axis::time()).group(&format!("guest a {word}")).points(points));
            for (label, part) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
                let value = quantile(&times, part).unwrap_or(f64::NAN);
                result.value(&format!("{}_{label}", name.replace('/', "_")), value, "ms");
            }
            result.value(&format!("{}_lost", name.replace('/', "_")), trips.lost() as f64, "pings");
            p90.push(quantile(&times, 0.9).unwrap_or(f64::NAN));
            names.push(name);
        }
        result.figure(Figure::cdf(&title).caption(CAPTION).x("round trip").series(names));
        let (runs, waits) = (p90[0], p90[1]);
        result.claim(Claim {
            about: About::Fairlane,
            source: "README".to_owned(),
            text: format!(
                "A guest that waits for its CPU, flooded {}, does not delay its neighbour's pings",
                case.from
            ),
            expected: format!("nine of ten take at most {MAX_ADDED} ms longer than while it runs"),
            measured: format!("{waits:.2} ms, {runs:.2} ms while it runs"),
            ours: None,
            verdict: (waits <= runs + MAX_ADDED).into(),
            figure: Some(title),
        });
    }
    Ok(())
}

/// Pings one guest while the other is flooded, and waits for its CPU or not.
fn measure(stage: &Stage, case: &Case, waits: bool) -> Result<RoundTrips, Error> {
    let flooded = SocketAddr::from((sender_address(FLOODED), PORT));
    let seconds = SECONDS + PATIENCE;
    let spec = ReceiveSpec { port: PORT, interval: 1.0, seconds: seconds + 0.5 };
    let receiving = stage.sender(FLOODED).start_job(Command::UdpReceive(spec))?;
    receiving.started()?;
    let flooder = case.sender.map_or(stage.receiver(), |index| stage.sender(index));
    let spec = udp::SendSpec { to: flooded, size: case.size, rate: Some(case.rate), seconds };
    let flooding = flooder.start_job(Command::UdpSend(spec))?;
    let count = (SECONDS / INTERVAL) as u16;
    let pings = ping::Spec { to: sender_address(PINGED), count, interval: INTERVAL, patience: PATIENCE };
    let ping = || stage.receiver().run(Command::Ping(pings));
    let outcome = if waits { stage.in_slices(stage.sending_guest(FLOODED), ping)? } else { ping()? };
    [flooding, receiving].into_iter().try_for_each(|job: Job| job.wait().map(drop))?;
    let Outcome::RoundTrips(trips) = outcome else { panic!("pings are answered by round trips") };
    Ok(trips)
}
