//! Path length: the instructions per packet, by component and function.
//!
//! A plugin of the emulator (`plugin/path-length.c`) counts the instructions of each block of code up to a mark. The counts between
//! two marks ([`Counts::since`]) are assigned to components by the code's place: hypervisor, kernels and programs have different
//! virtual addresses, and each kernel belongs to one domain ([`Domains`]). The sums are a [`Bill`]; divided by the packets between
//! the marks they are the path length. Emulation counts instructions: it shows neither cache and TLB misses nor the hardware's cost
//! of entering and leaving a hypervisor.

mod bill;
mod counts;
mod domains;

pub use bill::{Bill, Component};
pub use counts::{Code, Counts, Place, Tally};
pub use domains::{Domain, Domains};

pub use crate::error::FormatError;
