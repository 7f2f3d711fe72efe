//! Helpers of tests with real guests.

use std::env;

use fairlane_lab::Error;
use libtest_mimic::{Completion, Failed, Trial};

/// A test that needs programs that a host may lack. Without User-Mode Linux, QEMU or the built agent it is reported as
/// ignored; with `FAIRLANE_GUESTS=required` in the environment, as under `make test`, it fails instead.
pub(crate) fn guest_test(name: &str, test: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match test() {
        Ok(()) => Ok(Completion::Completed),
        Err(Error::Missing(what)) if env::var_os("FAIRLANE_GUESTS").is_none_or(|value| value != "required") => {
            eprintln!("SKIPPED: {what}");
            Ok(Completion::ignored_with(what))
        }
        Err(error) => Err(Failed::from(error.to_string())),
    })
}
