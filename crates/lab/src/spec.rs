//! The specification of a guest: its kind, its resources and its card's backend.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use fairlane_core::packet::Mac;

use crate::{console, error::Error, tools::Tools};

/// The kind of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// User-Mode Linux.
    Uml,
    /// QEMU, with KVM if that boots a guest, else emulated; its card is virtio.
    Qemu,
    /// The same with an emulated Intel e1000 card, whose backend can only be a tap.
    QemuE1000,
}

/// A guest to boot.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Its host name, and its name in messages: letters, digits and hyphens.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its number of virtual CPUs; 1 on User-Mode Linux.
    pub cpus: usize,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// The programs it can run besides its agent.
    pub tools: Tools,
    /// Its network card, if any.
    pub nic: Option<Nic>,
    /// The socket at which QEMU listens for a [`Monitor`](crate::Monitor), which can migrate the guest. None: no monitor.
    pub monitor: Option<PathBuf>,
    /// The file with its kernel's console output.
    pub log: PathBuf,
}

/// The backend of a guest's network card.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A vhost-user backend: its socket, which must listen already.
    VhostUser(PathBuf),
    /// A vhost-user backend that connects to this socket, on which QEMU listens. The guest boots once it is connected.
    VhostUserClient(PathBuf),
    /// A tap interface in the network namespace of the thread that boots the guest.
    Tap(String),
}

/// A guest's network card.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Its backend.
    pub backend: Backend,
    /// The MAC address.
    pub mac: [u8; 6],
    /// The IP address.
    pub address: Ipv4Addr,
    /// The length of its network's prefix, in bits.
    pub prefix: u8,
    /// The number of queue pairs; 1 on User-Mode Linux.
    pub queues: u16,
    /// Whether its driver may use packed rings; on QEMU only.
    pub packed: bool,
}

impl GuestSpec {
    /// A minimal guest whose card has a vhost-user backend. The backend's socket, `NAME.sock`, and the log of the guest's console,
    /// `NAME.console`, are in `home`. Its network's prefix is 24 bits long.
    pub fn served(kind: Kind, name: &str, home: &Path, mac: [u8; 6], address: Ipv4Addr) -> GuestSpec {
        let backend = Backend::VhostUser(home.join(format!("{name}.sock")));
        GuestSpec {
            name: name.to_owned(),
            kind,
            cpus: 1,
            memory_mib: 128,
            tools: Tools::default(),
            nic: Some(Nic { backend, mac, address, prefix: 24, queues: 1, packed: false }),
            monitor: None,
            log: home.join(format!("{name}.console")),
        }
    }

    /// The last lines of its console output, indented, for messages about a guest that ended.
    pub fn last_words(&self) -> String {
        console::last_lines(&self.log, "")
    }

    /// The agent's part of the kernel's command line.
    pub(crate) fn agent_arguments(&self, console: &str) -> String {
        let mut arguments = format!("fairlane.console={console} fairlane.host={}", self.name);
        if let Some(nic) = &self.nic {
            let card = match (self.kind, &nic.backend) {
                // The name that User-Mode Linux's own driver gives its first card.
                (Kind::Uml, Backend::Tap(_)) => "vec0",
                _ => "eth0",
            };
            arguments += &format!(
                " fairlane.card={card} fairlane.mac={} fairlane.ip={}/{}",
                Mac(nic.mac),
                nic.address,
                nic.prefix
            );
        }
        arguments
    }

    /// Refuses an invalid name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.bytes().all(fits) {
            let reason = "a name has 1 to 63 letters, digits and hyphens".to_owned();
            return Err(Error::Spec { guest: self.name.clone(), reason });
        }
        Ok(())
    }
}
