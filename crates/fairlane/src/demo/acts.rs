//! The acts of the demo as data: each has a load, settings of a link, and the shares that should result.

use clap::ValueEnum;

/// The wire's rate, in bits per second.
pub(super) const LINK_RATE: f64 = 100e6;
/// The `min_rate` of guest a in act `min-rate`, in bits per second.
pub(super) const MIN_RATE: f64 = 20e6;

/// The acts, by their names on the command line and in the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Name {
    /// Round robin and a queue that drops: a guest that offers more gets more
    Before,
    /// The same load with fair sharing
    Fair,
    /// Weighted round robin, with weights that change from 30:1 to 1:30
    Wrr,
    /// Fair sharing, with weights that change from 30:1 to 1:30
    Weights,
    /// A guaranteed rate despite heavier floods
    MinRate,
    /// Transfers to a guest that waits for its CPU, without and with early ack
    EarlyAck,
    /// Pings to a guest whose neighbour is flooded and waits for its CPU
    Neighbour,
}

impl Name {
    /// The name on the command line and in the result.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Name::Before => "before",
            Name::Fair => "fair",
            Name::Wrr => "wrr",
            Name::Weights => "weights",
            Name::MinRate => "min-rate",
            Name::EarlyAck => "early-ack",
            Name::Neighbour => "neighbour",
        }
    }
}

/// One act.
pub(super) struct Act {
    /// Its name.
    pub name: Name,
    /// Its title in report and terminal.
    pub title: &'static str,
    /// The caption of its figure.
    pub caption: &'static str,
    /// Settings applied before the load begins.
    pub prelude: Vec<Setting>,
    /// Offered load of each guest, starting with guest a, in bits per second; none means a flood.
    pub loads: Vec<Option<f64>>,
    /// The steps while the load runs, in order.
    pub steps: Vec<Step>,
}

/// A setting of a vif or link, as `fairlane ctl set` would make it.
pub(super) struct Setting {
    /// The vif or link.
    pub target: &'static str,
    /// The key.
    pub key: &'static str,
    /// The value's text.
    pub value: String,
}

/// A number of whole seconds with the same settings.
pub(super) struct Step {
    /// Its label on the plot; empty if the act has only one step.
    pub label: String,
    /// Settings applied when it begins.
    pub settings: Vec<Setting>,
    /// Its length, in seconds.
    pub seconds: usize,
    /// The expected share of the link of each guest, 0 to 1.
    pub shares: Vec<f64>,
}

impl Act {
    /// The length of all steps, in seconds.
    pub(super) fn seconds(&self) -> usize {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    /// The step of each whole second.
    pub(super) fn by_second(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().flat_map(|step| std::iter::repeat_n(step, step.seconds))
    }
}

/// The vifs of the sending guests, in the order of loads and shares.
pub(super) const SENDERS: [&str; 3] = ["a", "b", "c"];

/// Weights of guests a and b, for each second.
const WEIGHTS: [[u32; 2]; 9] = [[30, 1], [15, 1], [5, 1], [2, 1], [1, 1], [1, 2], [1, 5], [1, 15], [1, 30]];

/// The act of this name; `seconds` is the length of acts with constant settings. None for [`Name::EarlyAck`] and [`Name::Neighbour`], which have
/// transfers instead of floods.
pub(super) fn act(name: Name, seconds: usize) -> Option<Act> {
    // Adamczyk and Chydzinski (2011), figure 7: one guest offers the link's rate, the other three times as much.
    let uneven = vec![Some(LINK_RATE), Some(3.0 * LINK_RATE)];
    let flood = |guests| vec![None; guests];
    let steady =
        |shares: &[f64]| vec![Step { label: String::new(), settings: Vec::new(), seconds, shares: shares.to_vec() }];
    Some(match name {
        Name::EarlyAck | Name::Neighbour => return None,
        Name::Before => Act {
            name,
            title: "Before: round robin and a queue that drops",
            caption: "Guest a offers the link's rate, guest b three times as much. Frames are taken from the rings in turn as \
                      they arrive, and the queue after them drops what does not fit, so each guest's rate follows from \
                      what it offers.",
            prelude: vec![],
            loads: uneven,
            steps: steady(&[0.5, 0.5]),
        },
        Name::Fair => Act {
            name,
            title: "Fair: the same load, equal weights",
            caption: "When the link is full, frames wait in the guests' rings, and the scheduler serves each ring according \
                      to its weight.",
            prelude: vec![set("senders", "scheduler", "fair"), set("a", "weight", 1), set("b", "weight", 1)],
            loads: uneven,
            steps: steady(&[0.5, 0.5]),
        },
        Name::Wrr => Act {
            name,
            title: "Weighted round robin: weights from 30:1 to 1:30",
            caption: "Both guests flood the link, and their weights change every second during the flood.",
            prelude: first_weights("wrr"),
            loads: flood(2),
            steps: changing_weights(),
        },
        Name::Weights => Act {
            name,
            title: "Fair: weights from 30:1 to 1:30",
            caption: "The same under the default scheduler, which counts bytes; weighted round robin counts frames.",
            prelude: first_weights("fair"),
            loads: flood(2),
            steps: changing_weights(),
        },
        Name::MinRate => Act {
            name,
            title: "A guaranteed rate despite heavier floods",
            caption: "Guest a has a hundredth of the others' weight and a min_rate of 20 Mbit/s. All three flood the \
                      link.",
            prelude: vec![
                set("senders", "scheduler", "fair"),
                set("a", "min_rate", "20Mbit/s"),
                set("a", "weight", 1),
                set("b", "weight", 100),
                set("c", "weight", 100),
            ],
            loads: flood(3),
            steps: steady(&[
                MIN_RATE / LINK_RATE,
                (1.0 - MIN_RATE / LINK_RATE) / 2.0,
                (1.0 - MIN_RATE / LINK_RATE) / 2.0,
            ]),
        },
    })
}

/// The settings before the load of the acts with changing weights.
fn first_weights(scheduler: &str) -> Vec<Setting> {
    let [a, b] = WEIGHTS[0];
    vec![set("senders", "scheduler", scheduler), set("a", "weight", a), set("b", "weight", b)]
}

/// The steps of Adamczyk and Chydzinski (2011), figure 9.
fn changing_weights() -> Vec<Step> {
    let step = |[a, b]: [u32; 2]| {
        let share = |weight: u32| f64::from(weight) / f64::from(a + b);
        Step {
            label: format!("{a}:{b}"),
            settings: vec![set("a", "weight", a), set("b", "weight", b)],
            seconds: 1,
            shares: vec![share(a), share(b)],
        }
    };
    WEIGHTS.map(step).into()
}

fn set(target: &'static str, key: &'static str, value: impl ToString) -> Setting {
    Setting { target, key, value: value.to_string() }
}
