//! Boots guests by their specs, each kind in its way.

use std::{path::Path, thread};

use crate::{
    error::Error,
    guest::{Guest, Talk},
    image,
    launch::Launch,
    qemu,
    spec::{GuestSpec, Kind},
    uml,
};

impl Guest {
    /// Boots a guest and waits until its agent serves.
    ///
    /// # Errors
    /// [`Error::Missing`] where the machine lacks the guest's kind, [`Error::Boot`] where it does not come up.
    pub fn boot(spec: &GuestSpec) -> Result<Guest, Error> {
        let agent = image::agent()?;
        let machine = launch(spec, &agent)?;
        Guest::start(&spec.name, &spec.log, &agent, machine)
    }

    /// Boots guests, all at once; where one fails, the others end.
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

    /// Starts a QEMU that a guest of this kind is to be moved to; its agent is reached once the guest is there.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn receive(spec: &GuestSpec) -> Result<Guest, Error> {
        let agent = image::agent()?;
        let mut machine = launch(spec, &agent)?;
        machine.arguments.extend(["-incoming", "defer"].map(str::to_owned));
        Guest::spawn(&Talk::Live, &spec.name, &spec.log, &agent, &machine).map(|(guest, _)| guest)
    }
}

/// The command that starts a guest.
///
/// # Errors
/// [`Error::Missing`] where the machine lacks the guest's kind, [`Error::Orders`] where that cannot be so.
pub fn launch(spec: &GuestSpec, agent: &Path) -> Result<Launch, Error> {
    spec.check()?;
    match spec.kind {
        Kind::Uml => uml::machine(spec, agent),
        Kind::Qemu | Kind::QemuE1000 => qemu::machine(spec, agent),
    }
}
