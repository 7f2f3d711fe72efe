//! Decides whether a run of the command failed because this machine lacks something that the test needs.

use libtest_mimic::{Completion, Failed};
use std::env;

/// Parts of messages about missing programs, images and permissions.
const MISSING: [&str; 6] =
    ["is not installed", "is not built", "is not there", "needs root", "was not fetched", "lab setup"];

/// Ignores a test if the run's errors say that something is missing, unless `FAIRLANE_GUESTS=required` is in the environment.
///
/// # Errors
/// The run failed for another reason, or the test must not be ignored.
pub(crate) fn skip_or_fail(errors: String) -> Result<Completion, Failed> {
    let is_missing = MISSING.iter().any(|text| errors.contains(text));
    if is_missing && env::var_os("FAIRLANE_GUESTS").is_none_or(|value| value != "required") {
        eprintln!("SKIPPED: {errors}");
        return Ok(Completion::ignored_with(errors.trim()));
    }
    Err(errors.into())
}
