//! The result file, its statistics, tables, plots and pages.
//!
//! A run adds raw samples, figures and claims to a [`ResultFile`] and writes it:
//!
//! ```no_run
//! use fairlane_report::{Axis, Figure, ResultFile, Series};
//!
//! let mut result = ResultFile::new("demo");
//! result.setting("link", "100 Mbit/s");
//! result.series(Series::new("fair/a", "Mbit/s", Axis::time()).group("guest a").point(1.0, 49.8).point(2.0, 50.1));
//! result.figure(Figure::lines("Fair").series(["fair/a"]).y("throughput"));
//! result.metric("fair_share_a", &[49.8, 50.1], "Mbit/s");
//! print!("{}", fairlane_report::text::summary(&result));
//! result.write("out/demo".as_ref())?;
//! # Ok::<(), fairlane_report::Error>(())
//! ```
//!
//! Every table and plot is computed from the file alone, so a page can be made from an old file.
#![forbid(unsafe_code)]

mod check;
mod file;
mod find;
mod host;
pub mod html;
mod json;
mod label;
pub mod plot;
mod result;
pub mod stats;
pub mod steps;
pub mod text;
mod verdict;

pub use file::{Error, replace, write_figures, write_page};
pub use find::find;
pub use host::Host;
pub use label::{bracketed, number, quantity};
pub use result::{
    About, At, Axis, Claim, Estimate, Figure, Kind, Mark, Metric, ResultFile, Role, SCHEMA, Series, Source,
};
pub use verdict::{Bounds, Verdict};
