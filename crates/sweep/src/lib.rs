//! A plan simulated, or an experiment run, with many settings: a grid of points, the workers that do them, and the rows that they write.
//!
//! A directory holds one sweep. Its points are cut into parts; whoever works on a part writes its rows to a file of its own, whole or
//! not at all. So a part is done if its file is there: that is all that resuming, several workers and several computers need.

#![forbid(unsafe_code)]

mod base;
mod grid;
mod hyperqueue;
mod local;
mod named;
mod page;
mod point;
mod repeats;
mod rows;
mod setting;
mod store;

pub use grid::Grid;
pub use hyperqueue::run as run_on_hyperqueue;
pub use local::{Progress, run as run_here};
pub use page::{best, result};
pub use rows::Row;
pub use store::{Error, Store};
