//! What was said before each act, judged by what was measured in it.

use super::acts::{Act, FLOOR, Name, SENDERS};
use super::take::Take;
use fairlane_report::{About, Claim};

/// The most by which a share may differ from what its weight says, in every whole second.
const SHARE: f64 = 0.01;
/// The most by which a guaranteed rate may differ, as a part of it, in every whole second.
const RATE: f64 = 0.02;

/// The claims of an act, each with its verdict.
pub fn claims(act: &Act, take: &Take) -> Vec<Claim> {
    let mut claims = match act.name {
        Name::Before => vec![abuse(act, take)],
        Name::Fair => {
            vec![shares(act, take, "README", "Guests of equal weight get equal shares, whatever they offer")]
        }
        Name::Wrr => {
            let source = "README; Adamczyk and Chydzinski 2011, figure 9";
            vec![shares(act, take, source, "Under weighted round robin, shares follow the weights as they change")]
        }
        Name::Weights => {
            vec![shares(act, take, "README", "Under fair sharing, shares follow the weights as they change")]
        }
        Name::MinRate => vec![floor(act, take)],
        Name::EarlyAck => Vec::new(),
    };
    if act.name != Name::Before {
        claims.push(no_loss(act, take));
    }
    claims.push(balance(act, take));
    claims
}

/// Seed 002, figure 7: the overactive guest gets more in proportion.
fn abuse(act: &Act, take: &Take) -> Claim {
    let mean = |sender| {
        let rates = take.rates(sender);
        rates.iter().sum::<f64>() / rates.len() as f64 / 1e6
    };
    let (modest, greedy) = (mean(0), mean(1));
    let ratio = greedy / modest;
    Claim {
        about: About::Source,
        source: "Adamczyk and Chydzinski 2011, figure 7".to_owned(),
        text:
            "The more abusive guest gets the better throughput: one that offers three times as much gets about three \
               times as much"
                .to_owned(),
        expected: "2 to 4 times".to_owned(),
        measured: format!("{ratio:.2} times ({greedy:.1} and {modest:.1} Mbit/s)"),
        holds: (2.0..=4.0).contains(&ratio),
        figure: Some(act.title.to_owned()),
    }
}

/// Every second's shares are what the weights say.
fn shares(act: &Act, take: &Take, source: &str, text: &str) -> Claim {
    let (worst, guest, second) = worst(act, take);
    Claim {
        about: About::Fairlane,
        source: source.to_owned(),
        text: format!("{text}, in each whole second from the first"),
        expected: format!("within {SHARE} of the share"),
        measured: format!("at most {worst:.4} off (guest {guest}, second {})", second + 1),
        holds: worst <= SHARE,
        figure: Some(act.title.to_owned()),
    }
}

/// The greatest difference of a share from its due, whose it was and in which second. What cannot be told, because
/// nothing arrived, is infinitely wrong.
fn worst(act: &Act, take: &Take) -> (f64, &'static str, usize) {
    let mut worst = (0.0, SENDERS[0], 0);
    for (sender, guest) in SENDERS.into_iter().enumerate().take(act.loads.len()) {
        for (second, (share, step)) in take.shares(sender).iter().zip(act.by_second()).enumerate() {
            let off = (share - step.shares[sender]).abs();
            let off = if off.is_nan() { f64::INFINITY } else { off };
            if off > worst.0 {
                worst = (off, guest, second);
            }
        }
    }
    worst
}

/// The guaranteed rate is kept in every second.
fn floor(act: &Act, take: &Take) -> Claim {
    let rates = take.rates(0);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let allowed = (1.0 - RATE) * FLOOR..=(1.0 + RATE) * FLOOR;
    Claim {
        about: About::Fairlane,
        source: "README".to_owned(),
        text: "A guest with min_rate gets it against heavier floods, in each whole second".to_owned(),
        expected: format!("{:.0} Mbit/s within {:.0}%", FLOOR / 1e6, RATE * 100.0),
        measured: format!("{:.2} to {:.2} Mbit/s", least / 1e6, most / 1e6),
        holds: allowed.contains(&least) && allowed.contains(&most),
        figure: Some(act.title.to_owned()),
    }
}

/// Nothing is lost between ring and wire. What arrived of what programs sent is told beside it: a guest's own kernel may
/// drop too.
fn no_loss(act: &Act, take: &Take) -> Claim {
    let ledger = &take.ledger;
    let (sent, received) = (ledger.sent_datagrams, ledger.received_datagrams);
    Claim {
        about: About::Fairlane,
        source: "README".to_owned(),
        text: format!("Nothing is dropped between ring and wire ({})", act.name.word()),
        expected: "0 frames".to_owned(),
        measured: format!("{} frames; {received} of {sent} datagrams arrived", ledger.drops()),
        holds: ledger.drops() == 0 && ledger.on_wire > 0,
        figure: Some(act.title.to_owned()),
    }
}

/// The books balance.
fn balance(act: &Act, take: &Take) -> Claim {
    let ledger = &take.ledger;
    Claim {
        about: About::Fairlane,
        source: "README".to_owned(),
        text: format!("Every frame taken from a ring is forwarded, or dropped and counted ({})", act.name.word()),
        expected: format!("{} frames", ledger.taken),
        measured: format!(
            "{} forwarded, {} dropped, {} unaccounted for",
            ledger.delivered,
            ledger.drops() + ledger.undelivered.values().sum::<u64>(),
            ledger.unaccounted()
        ),
        holds: ledger.unaccounted() == 0 && ledger.taken > 0,
        figure: Some(act.title.to_owned()),
    }
}
