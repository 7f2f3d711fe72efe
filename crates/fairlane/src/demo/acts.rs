//! What is shown: acts, each a load, a link's settings and the shares they should lead to. Acts are data.

use clap::ValueEnum;

/// The wire's rate, in bits a second.
pub const LINK: f64 = 100e6;
/// What act `min-rate` promises to guest a, in bits a second.
pub const FLOOR: f64 = 20e6;

/// The acts, by the name they have on the command line and in the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Round robin and a queue that drops: who offers more gets more
    Before,
    /// The same load, shared fairly
    Fair,
    /// Weighted round robin, weights moved from 30:1 to 1:30
    Wrr,
    /// Fair sharing, weights moved from 30:1 to 1:30
    Weights,
    /// A guaranteed rate against heavier floods
    MinRate,
    /// Transfers to a guest that waits for its CPU, without and with early ack
    EarlyAck,
}

impl Name {
    /// As a word.
    pub fn word(self) -> &'static str {
        match self {
            Name::Before => "before",
            Name::Fair => "fair",
            Name::Wrr => "wrr",
            Name::Weights => "weights",
            Name::MinRate => "min-rate",
            Name::EarlyAck => "early-ack",
        }
    }
}

/// One act.
pub struct Act {
    /// Which.
    pub name: Name,
    /// Its heading.
    pub title: &'static str,
    /// What to see in it.
    pub caption: &'static str,
    /// Settings made before its load begins.
    pub prelude: Vec<Setting>,
    /// What each guest offers, in bits a second, from guest a on; none is a flood.
    pub loads: Vec<Option<f64>>,
    /// What happens while the load runs, one step after the other.
    pub steps: Vec<Step>,
}

/// A setting of a vif or link, as `fairlane ctl set` would make it.
pub struct Setting {
    /// The vif or link.
    pub target: &'static str,
    /// The key.
    pub key: &'static str,
    /// The value's text.
    pub value: String,
}

/// Some whole seconds under the same settings.
pub struct Step {
    /// Its name on the plot; empty where an act has one step only.
    pub label: String,
    /// Settings made as it begins.
    pub settings: Vec<Setting>,
    /// How long it lasts.
    pub seconds: usize,
    /// The part of the link, 0 to 1, that each guest should have.
    pub shares: Vec<f64>,
}

impl Act {
    /// How long its steps last, in seconds.
    pub fn seconds(&self) -> usize {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    /// The step of each whole second.
    pub fn by_second(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().flat_map(|step| std::iter::repeat_n(step, step.seconds))
    }
}

/// The vifs of the guests that send, in the order of loads and shares.
pub const SENDERS: [&str; 3] = ["a", "b", "c"];

/// Weights of guests a and b, second by second.
const WEIGHTS: [[u32; 2]; 9] = [[30, 1], [15, 1], [5, 1], [2, 1], [1, 1], [1, 2], [1, 5], [1, 15], [1, 30]];

/// An act of floods; `seconds` is the length of those whose settings stay the same. None for [`Name::EarlyAck`], which has
/// transfers instead.
pub fn act(name: Name, seconds: usize) -> Option<Act> {
    // Seed 002, figure 7: one guest offers the link's rate, the other three times that.
    let uneven = vec![Some(LINK), Some(3.0 * LINK)];
    let flood = |guests| vec![None; guests];
    let steady =
        |shares: &[f64]| vec![Step { label: String::new(), settings: Vec::new(), seconds, shares: shares.to_vec() }];
    Some(match name {
        Name::EarlyAck => return None,
        Name::Before => Act {
            name,
            title: "Before: round robin and a queue that drops",
            caption: "Guest a offers the link's rate, guest b three times as much. All frames are taken from the rings as \
                      they come, in turn, and the queue behind drops what does not fit: what each gets follows from \
                      what it offers.",
            prelude: vec![],
            loads: uneven,
            steps: steady(&[0.5, 0.5]),
        },
        Name::Fair => Act {
            name,
            title: "Fair: the same load, equal weights",
            caption: "A full link takes no more, frames wait in their guests' rings, and the scheduler takes from each \
                      ring what its weight says.",
            prelude: vec![set("senders", "scheduler", "fair"), set("a", "weight", 1), set("b", "weight", 1)],
            loads: uneven,
            steps: steady(&[0.5, 0.5]),
        },
        Name::Wrr => Act {
            name,
            title: "Weighted round robin: weights from 30:1 to 1:30",
            caption: "Both guests flood the link, and their weights change every second, while frames pass.",
            prelude: moving_from("wrr"),
            loads: flood(2),
            steps: moving(),
        },
        Name::Weights => Act {
            name,
            title: "Fair: weights from 30:1 to 1:30",
            caption: "The same under the default scheduler, which counts bytes where weighted round robin counts frames.",
            prelude: moving_from("fair"),
            loads: flood(2),
            steps: moving(),
        },
        Name::MinRate => Act {
            name,
            title: "A guaranteed rate against heavier floods",
            caption: "Guest a has a hundredth of the others' weight, and a min_rate of 20 Mbit/s. All three flood the \
                      link.",
            prelude: vec![
                set("senders", "scheduler", "fair"),
                set("a", "min_rate", "20Mbit/s"),
                set("a", "weight", 1),
                set("b", "weight", 100),
                set("c", "weight", 100),
            ],
            loads: flood(3),
            steps: steady(&[FLOOR / LINK, (1.0 - FLOOR / LINK) / 2.0, (1.0 - FLOOR / LINK) / 2.0]),
        },
    })
}

/// The settings that the load of moving weights begins with.
fn moving_from(scheduler: &str) -> Vec<Setting> {
    let [a, b] = WEIGHTS[0];
    vec![set("senders", "scheduler", scheduler), set("a", "weight", a), set("b", "weight", b)]
}

/// The steps of seed 002, figure 9.
fn moving() -> Vec<Step> {
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
