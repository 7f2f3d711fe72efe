//! What surrounds Fairlane on the lab's machines, as the simulator has it. Each figure is fitted to one measured figure, which the page
//! `docs/results/simulation.md` names; all others of the page are predictions.

use fairlane_core::time::Nanos;
use fairlane_lab::MachineKind;
use fairlane_sim::scenario::{Costs, Cpu, Guest, Work};

/// Bytes of a datagram's Ethernet, IP and UDP headers; of a stream's, with time stamps; of a request for an echo with its data.
pub(crate) const DATAGRAM: u32 = 42;
pub(crate) const SEGMENT: u32 = 66;
pub(crate) const ECHO: u32 = 98;

/// Bytes of a stream's segments with segmentation offload, and without it; and of its window, as Linux has it.
pub(crate) const LARGE: u32 = 65_226;
pub(crate) const SMALL: u32 = 1514;
pub(crate) const WINDOW: u64 = 6 << 20;

/// Slots in a ring of a guest's card.
const RING: usize = 256;

/// The surroundings.
pub(crate) struct Surroundings {
    pub costs: Costs,
    /// Time from a notification until the guest handles it.
    pub wake: Nanos,
    /// What a guest does for a frame that it sends.
    pub work: Work,
    /// What a guest does with a frame that it receives.
    pub rx_work: Work,
    /// Time of a frame between the host and the external machine.
    pub delay: Nanos,
    /// Rate of the wire to the external machine.
    pub card: u64,
}

impl Surroundings {
    /// A guest that always runs.
    pub(crate) fn guest(&self, host: usize, vif: String) -> Guest {
        let Surroundings { wake, work, rx_work, .. } = *self;
        Guest { host, vif, cpu: Cpu::Always, ring: RING, wake, work, rx_work }
    }

    pub(crate) fn of(kind: MachineKind) -> Surroundings {
        match kind {
            // Emulated: a nanosecond is an instruction. From `isolation-cpu`: 33,013 frames of 1,514 bytes a second alone, and 19,893
            // frames of 60 bytes in 0.48 of the time; from `receive-stall`, `flood, runs`: the median of pings, and the
            // rates of the streams from and to the neighbour.
            MachineKind::Xen | MachineKind::XenPvh => Surroundings {
                costs: Costs { work: Work { frame: 23_860.0, byte: 4.27 }, wake: Nanos::from_micros(60) },
                wake: Nanos::from_micros(410),
                work: Work { frame: 0.0, byte: 12.75 },
                rx_work: Work { frame: 0.0, byte: 19.7 },
                delay: Nanos::from_micros(20),
                card: 10_000_000_000,
            },
            // From `receive-stall`, `flood, runs`: the median of pings, and the rates of the streams from and to the
            // neighbour.
            _ => Surroundings {
                costs: Costs { work: Work { frame: 500.0, byte: 0.3 }, wake: Nanos::from_micros(20) },
                wake: Nanos::from_micros(100),
                work: Work::default(),
                rx_work: Work { frame: 0.0, byte: 0.73 },
                delay: Nanos::from_micros(25),
                card: 100_000_000_000,
            },
        }
    }
}
