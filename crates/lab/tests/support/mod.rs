//! What tests with real guests share.

use std::{env, fs, process, time::Instant};

use fairlane_lab::{Error, Guest, GuestSpec, Kind};
use libtest_mimic::{Completion, Failed, Trial};

/// A test that needs what a machine may lack. Without User-Mode Linux, QEMU or the built agent it says so, and is
/// counted as ignored; with `FAIRLANE_GUESTS=required` in the environment, as under `make test`, it fails instead.
pub fn guest_test(name: &str, test: fn() -> Result<(), Error>) -> Trial {
    Trial::ignorable_test(name, move || match test() {
        Ok(()) => Ok(Completion::Completed),
        Err(Error::Missing(what)) if env::var_os("FAIRLANE_GUESTS").is_none_or(|value| value != "required") => {
            eprintln!("SKIPPED: {what}");
            Ok(Completion::ignored_with(what))
        }
        Err(error) => Err(Failed::from(error.to_string())),
    })
}

/// A guest without a network card, its name made one of this process.
pub fn spec(kind: Kind, name: &str) -> GuestSpec {
    let name = format!("{name}-{}", process::id());
    let log = env::temp_dir().join(format!("fairlane-test-{name}.console"));
    GuestSpec { name, kind, memory_mib: 128, nic: None, log }
}

/// Boots a guest; its console's log stays only if that fails.
pub fn boot(spec: &GuestSpec) -> Result<Guest, Error> {
    let start = Instant::now();
    let guest = Guest::boot(spec)?;
    eprintln!("{}: up after {:.2} s", spec.name, start.elapsed().as_secs_f64());
    fs::remove_file(&spec.log).unwrap();
    Ok(guest)
}
