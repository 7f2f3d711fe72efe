//! The result file, statistics, plots and pages.
