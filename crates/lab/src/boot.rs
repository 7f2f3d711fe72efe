//! Boots guests by their specs.

use std::{path::Path, thread};

use crate::{
    error::Error,
    guest::{ConsoleMode, Guest},
    image,
    launch::Launch,
    qemu,
    spec::{GuestSpec, Kind},
    uml,
};

impl Guest {
    /// Boots a guest and waits until its agent is ready.
    ///
    /// # Errors
    /// [`Error::Missing`] if something that this kind of guest needs is not installed, [`Error::Boot`] if it does not come up.
    pub fn boot(spec: &GuestSpec) -> Result<Guest, Error> {
        let agent = image::agent()?;
        let machine = launch(spec, &agent)?;
        Guest::start(&spec.name, &spec.log, &agent, machine)
    }

    /// Boots guests at the same time. If one fails, the others are ended.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot_all(specs: &[GuestSpec]) -> Result<Vec<Guest>, Error> {
        thread::scope(|scope| {
            let booting: Vec<_> = specs.iter().map(|spec| scope.spawn(|| Guest::boot(spec))).collect();
            let booted: Vec<_> =
                booting.into_iter().map(|guest| guest.join().expect("booting does not panic")).collect();
            booted.into_iter().collect()
        })
    }

    /// Starts a QEMU that waits for a guest's migration. Its agent answers once the guest has arrived.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn receive(spec: &GuestSpec) -> Result<Guest, Error> {
        let agent = image::agent()?;
        let mut machine = launch(spec, &agent)?;
        machine.arguments.extend(["-incoming", "defer"].map(str::to_owned));
        Guest::spawn(&ConsoleMode::Live, &spec.name, &spec.log, &agent, &machine).map(|(guest, _)| guest)
    }
}

/// The command that starts a guest.
///
/// # Errors
/// [`Error::Missing`] if something that this kind of guest needs is not installed, [`Error::Spec`] if the spec is impossible.
pub(crate) fn launch(spec: &GuestSpec, agent: &Path) -> Result<Launch, Error> {
    spec.check()?;
    match spec.kind {
        Kind::Uml => uml::machine(spec, agent),
        Kind::Qemu | Kind::QemuE1000 => qemu::machine(spec, agent),
    }
}
