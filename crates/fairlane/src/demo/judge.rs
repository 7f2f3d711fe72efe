//! The claims about each act, judged by the measurements.

use super::acts::{Act, MIN_RATE, Name, SENDERS};
use super::ledger::Ledger;
use super::measure::Measurement;
use fairlane_report::{About, Bounds, Claim, Metric, bracketed};

/// Largest allowed difference of a share from the due share, in every whole second.
const SHARE_TOLERANCE: f64 = 0.01;
/// Largest allowed relative difference of a guaranteed rate, in every whole second.
const RATE_TOLERANCE: f64 = 0.02;

/// The claims about an act, each with its verdict.
pub(super) fn claims(act: &Act, measured: &Measurement) -> Vec<Claim> {
    let mut claims = match act.name {
        Name::Before => vec![abuse(act, measured)],
        Name::Fair => {
            vec![shares(act, measured, "README", "Guests of equal weight get equal shares, whatever load they offer")]
        }
        Name::Wrr => {
            let source = "README; Adamczyk and Chydzinski 2011, figure 9";
            vec![shares(act, measured, source, "Under weighted round robin, shares follow the weights as they change")]
        }
        Name::Weights => {
            vec![shares(act, measured, "README", "Under fair sharing, shares follow the weights as they change")]
        }
        Name::MinRate => vec![floor(act, measured)],
        Name::EarlyAck | Name::Neighbour => Vec::new(),
    };
    if let Some(ledger) = &measured.ledger {
        claims.extend((act.name != Name::Before).then(|| no_loss(act, ledger)));
        claims.push(balance(act, ledger));
    }
    claims
}

/// Adamczyk and Chydzinski (2011), figure 7: the overactive guest gets more.
fn abuse(act: &Act, measured: &Measurement) -> Claim {
    let rates = |sender| {
        let rates: Vec<f64> = measured.rates(sender).iter().map(|rate| rate / 1e6).collect();
        Metric::mean_student(&rates, "Mbit/s")
    };
    let (modest, greedy) = (rates(0), rates(1));
    let (ratio, interval) = greedy.ratio_to(&modest);
    let bounds = Bounds { at_least: Some(1.0), at_most: None };
    Claim {
        about: About::Source,
        source: "Adamczyk and Chydzinski 2011, figure 7".to_owned(),
        text: "The more abusive guest gets the better throughput: one that offers three times as much gets more"
            .to_owned(),
        expected: bounds.words("times"),
        measured: format!(
            "{ratio:.2} times{} ({:.1} and {:.1} Mbit/s)",
            bracketed(interval),
            greedy.value,
            modest.value
        ),
        ours: Some("what the guest does; in the paper it has two or three connections at full speed".to_owned()),
        verdict: bounds.judge(ratio, interval),
        figure: Some(act.title.to_owned()),
    }
}

/// The shares in every second are the due shares.
fn shares(act: &Act, measured: &Measurement, source: &str, text: &str) -> Claim {
    let (worst, guest, second) = worst(act, measured);
    Claim {
        about: About::Fairlane,
        source: source.to_owned(),
        text: format!("{text}, in each whole second from the first"),
        expected: format!("within {SHARE_TOLERANCE} of the share"),
        measured: format!("at most {worst:.4} off (guest {guest}, second {})", second + 1),
        ours: None,
        verdict: (worst <= SHARE_TOLERANCE).into(),
        figure: Some(act.title.to_owned()),
    }
}

/// The largest difference of a share from the due share, with its guest and second. If nothing arrived in a second, the
/// difference is infinite.
fn worst(act: &Act, measured: &Measurement) -> (f64, &'static str, usize) {
    let mut worst = (0.0, SENDERS[0], 0);
    for (sender, guest) in SENDERS.into_iter().enumerate().take(act.loads.len()) {
        for (second, (share, step)) in measured.shares(sender).iter().zip(act.by_second()).enumerate() {
            let off = (share - step.shares[sender]).abs();
            let off = if off.is_nan() { f64::INFINITY } else { off };
            if off > worst.0 {
                worst = (off, guest, second);
            }
        }
    }
    worst
}

/// The guest has its guaranteed rate in every second.
fn floor(act: &Act, measured: &Measurement) -> Claim {
    let rates = measured.rates(0);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let allowed = (1.0 - RATE_TOLERANCE) * MIN_RATE..=(1.0 + RATE_TOLERANCE) * MIN_RATE;
    Claim {
        about: About::Fairlane,
        source: "README".to_owned(),
        text: "A guest gets its min_rate despite heavier floods, in each whole second".to_owned(),
        expected: format!("{:.0} Mbit/s within {:.0}%", MIN_RATE / 1e6, RATE_TOLERANCE * 100.0),
        measured: format!("{:.2} to {:.2} Mbit/s", least / 1e6, most / 1e6),
        ours: None,
        verdict: (allowed.contains(&least) && allowed.contains(&most)).into(),
        figure: Some(act.title.to_owned()),
    }
}

/// Nothing is lost between ring and wire. The datagrams that programs sent and received are shown as well: a guest's own kernel
/// may drop some.
fn no_loss(act: &Act, ledger: &Ledger) -> Claim {
    let (sent, received) = (ledger.sent_datagrams, ledger.received_datagrams);
    Claim {
        about: About::Fairlane,
        source: "README".to_owned(),
        text: format!("Nothing is dropped between ring and wire ({})", act.name.as_str()),
        expected: "0 frames".to_owned(),
        measured: format!("{} frames; {received} of {sent} datagrams arrived", ledger.drops()),
        ours: None,
        verdict: (ledger.drops() == 0 && ledger.on_wire > 0).into(),
        figure: Some(act.title.to_owned()),
    }
}

/// Every frame is accounted for.
fn balance(act: &Act, ledger: &Ledger) -> Claim {
    Claim {
        about: About::Fairlane,
        source: "README".to_owned(),
        text: format!("Every frame taken from a ring is forwarded, or dropped and counted ({})", act.name.as_str()),
        expected: format!("{} frames", ledger.taken),
        measured: format!(
            "{} forwarded, {} dropped, {} unaccounted for",
            ledger.delivered,
            ledger.drops() + ledger.undelivered.values().sum::<u64>(),
            ledger.unaccounted()
        ),
        ours: None,
        verdict: (ledger.unaccounted() == 0 && ledger.taken > 0).into(),
        figure: Some(act.title.to_owned()),
    }
}
