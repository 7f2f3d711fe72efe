//! Path length: the instructions a packet takes on its way, by component and by function.
//!
//! A plugin of the emulator (`plugin/path-length.c`) counts what each block of code executes up to a mark. What lies
//! between two marks ([`Counts::since`]) is told apart by the code's place: the hypervisor has virtual addresses of its
//! own, kernels and programs have theirs, and each runs under a kernel that is one domain's ([`Domains`]). The sum is a
//! [`Bill`]; divided by the packets between the marks it is the path length. Emulation counts instructions: what misses in
//! caches and TLBs cost, and what the hardware takes to enter and leave a hypervisor, it cannot show.

mod bill;
mod counts;
mod domains;

pub use bill::{Bill, Component};
pub use counts::{Code, Counts, Place, Tally};
pub use domains::{Domain, Domains};

pub use crate::error::FormatError;
