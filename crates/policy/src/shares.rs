//! The shares of a vif or tenant, and the keys of each direction.

use crate::problem::Problems;
use crate::rules;
use crate::section::Section;
use fairlane_core::sched::Share;

/// What a vif or tenant may send, and what its guests may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of what it sends.
    pub tx: Share,
    /// Of what its guests receive.
    pub rx: Share,
    /// Whether `rx_weight` is not given. Then the weight of what is received is always that of what is sent.
    pub same_weight: bool,
}

impl Shares {
    /// Those of a table with this `weight` and no other keys.
    pub fn of_weight(weight: u32) -> Shares {
        let (burst, frame_burst) = (rules::default_burst(None), rules::default_frame_burst(None));
        let share = Share { burst, frame_burst, ..Share::of_weight(weight) };
        Shares { tx: share, rx: share, same_weight: true }
    }
}

/// A direction, as a guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What it sends.
    Tx,
    /// What it receives.
    Rx,
}

/// The keys of a share.
pub(crate) struct Keys {
    pub(crate) weight: &'static str,
    pub(crate) min_rate: &'static str,
    pub(crate) max_rate: &'static str,
    pub(crate) burst: &'static str,
    pub(crate) max_frames: &'static str,
    pub(crate) frame_burst: &'static str,
}

impl Direction {
    pub(crate) const ALL: [Direction; 2] = [Direction::Tx, Direction::Rx];

    pub(crate) fn keys(self) -> &'static Keys {
        match self {
            Direction::Tx => &Keys {
                weight: "weight",
                min_rate: "min_rate",
                max_rate: "max_rate",
                burst: "burst",
                max_frames: "max_frames",
                frame_burst: "frame_burst",
            },
            Direction::Rx => &Keys {
                weight: "rx_weight",
                min_rate: "rx_min_rate",
                max_rate: "rx_max_rate",
                burst: "rx_burst",
                max_frames: "rx_max_frames",
                frame_burst: "rx_frame_burst",
            },
        }
    }

    pub(crate) fn of(self, shares: &Shares) -> &Share {
        match self {
            Direction::Tx => &shares.tx,
            Direction::Rx => &shares.rx,
        }
    }
}

/// One setting of a share. Rates are bits a second, sizes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareSetting {
    /// `weight`.
    Weight(u32),
    /// `min_rate`; 0 for none.
    MinRate(u64),
    /// `max_rate`; unlimited if absent. A burst that is the default for the old rate becomes the default for the new
    /// one.
    MaxRate(Option<u64>),
    /// `burst`.
    Burst(u64),
    /// `max_frames`; unlimited if absent. It changes a default burst as [`ShareSetting::MaxRate`] does.
    MaxFrames(Option<u64>),
    /// `frame_burst`.
    FrameBurst(u64),
}

impl Shares {
    /// Reads the shares of a table. Wrong values have their defaults.
    pub(crate) fn read(section: &Section, problems: &mut Problems) -> Shares {
        let tx = share(section, Direction::Tx.keys(), rules::WEIGHT, problems);
        let rx = share(section, Direction::Rx.keys(), tx.weight, problems);
        Shares { tx, rx, same_weight: !section.has(Direction::Rx.keys().weight) }
    }

    /// Changes one setting.
    pub(crate) fn set(&mut self, direction: Direction, setting: ShareSetting) {
        let share = match direction {
            Direction::Tx => &mut self.tx,
            Direction::Rx => &mut self.rx,
        };
        match setting {
            ShareSetting::Weight(weight) => {
                share.weight = weight;
                match direction {
                    Direction::Tx if self.same_weight => self.rx.weight = weight,
                    Direction::Tx => {}
                    Direction::Rx => self.same_weight = false,
                }
            }
            ShareSetting::MinRate(rate) => share.min_rate = rate,
            ShareSetting::MaxRate(rate) => {
                set_limit(&mut share.max_rate, &mut share.burst, rate, rules::default_burst);
            }
            ShareSetting::Burst(burst) => share.burst = burst,
            ShareSetting::MaxFrames(rate) => {
                set_limit(&mut share.max_frames, &mut share.frame_burst, rate, rules::default_frame_burst);
            }
            ShareSetting::FrameBurst(burst) => share.frame_burst = burst,
        }
    }
}

/// Changes a rate, and a burst that is the default for the old rate.
fn set_limit(limit: &mut Option<u64>, burst: &mut u64, new: Option<u64>, default: fn(Option<u64>) -> u64) {
    if *burst == default(*limit) {
        *burst = default(new);
    }
    *limit = new;
}

fn share(section: &Section, keys: &Keys, weight: u32, problems: &mut Problems) -> Share {
    let max_rate = section.read(keys.max_rate, rules::rate, problems).flatten();
    let max_frames = section.read(keys.max_frames, rules::frames, problems).flatten();
    let frame_burst = section.read(keys.frame_burst, rules::frame_burst, problems);
    Share {
        weight: section.read(keys.weight, rules::weight, problems).unwrap_or(weight),
        min_rate: section.read(keys.min_rate, rules::min_rate, problems).unwrap_or(0),
        max_rate,
        burst: section.read(keys.burst, rules::burst, problems).unwrap_or(rules::default_burst(max_rate)),
        max_frames,
        frame_burst: frame_burst.unwrap_or(rules::default_frame_burst(max_frames)),
    }
}
