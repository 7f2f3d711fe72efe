//! Boots a single guest for a test.

use std::{
    env, fs, process,
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use fairlane_lab::{Error, Guest, GuestSpec, Kind, Tools};

/// A guest without a network card, with a unique name.
pub(crate) fn spec(kind: Kind, name: &str) -> GuestSpec {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{name}-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let log = env::temp_dir().join(format!("fairlane-test-{name}.console"));
    GuestSpec { name, kind, cpus: 1, memory_mib: 128, tools: Tools::default(), nic: None, monitor: None, log }
}

/// Boots a guest; the log of its console is kept only if that fails.
pub(crate) fn boot(spec: &GuestSpec) -> Result<Guest, Error> {
    let start = Instant::now();
    let guest = Guest::boot(spec)?;
    eprintln!("{}: up after {:.2} s", spec.name, start.elapsed().as_secs_f64());
    fs::remove_file(&spec.log).unwrap();
    Ok(guest)
}
