//! Orders for a guest: what it runs on, what it has, and what serves its card.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use fairlane_core::packet::Mac;

use crate::{console, error::Error, tools::Tools};

/// What a guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// User-Mode Linux.
    Uml,
    /// QEMU, with KVM where that boots a guest, else emulated; its card is virtio.
    Qemu,
    /// The same with an emulated Intel card, the e1000, which is served by a tap only.
    QemuE1000,
}

/// A guest to be booted.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Its host name, and its name in messages: letters, digits and hyphens.
    pub name: String,
    /// What it runs on.
    pub kind: Kind,
    /// Its virtual CPUs; 1 on User-Mode Linux.
    pub cpus: usize,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// What it runs besides its agent.
    pub tools: Tools,
    /// Its network card; without one it has its loopback only.
    pub nic: Option<Nic>,
    /// Where QEMU listens for a [`Monitor`](crate::Monitor), which can move the guest elsewhere; it does not where not given.
    pub monitor: Option<PathBuf>,
    /// The file that keeps what its kernel prints.
    pub log: PathBuf,
}

/// What serves a guest's network card.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A vhost-user backend by its socket, which listens already.
    VhostUser(PathBuf),
    /// A tap interface of the host's kernel, in the network namespace of the thread that boots the guest.
    Tap(String),
}

/// A guest's network card.
#[derive(Clone, Debug)]
pub struct Nic {
    /// What serves it.
    pub backend: Backend,
    /// The MAC address.
    pub mac: [u8; 6],
    /// The IP address.
    pub address: Ipv4Addr,
    /// The length of its network's prefix, in bits.
    pub prefix: u8,
    /// Pairs of rings; 1 on User-Mode Linux.
    pub queues: u16,
}

impl GuestSpec {
    /// A guest of the plainest sort, whose card is served by a vhost-user backend: its socket, `NAME.sock`, and what the guest's
    /// kernel prints, `NAME.console`, are in `home`. Its network has a prefix of 24 bits.
    pub fn served(kind: Kind, name: &str, home: &Path, mac: [u8; 6], address: Ipv4Addr) -> GuestSpec {
        let backend = Backend::VhostUser(home.join(format!("{name}.sock")));
        GuestSpec {
            name: name.to_owned(),
            kind,
            cpus: 1,
            memory_mib: 128,
            tools: Tools::default(),
            nic: Some(Nic { backend, mac, address, prefix: 24, queues: 1 }),
            monitor: None,
            log: home.join(format!("{name}.console")),
        }
    }

    /// The last lines of what its kernel printed, indented; for messages about a guest that ended.
    pub fn last_words(&self) -> String {
        console::last_lines(&self.log, "")
    }

    /// What the agent reads on the kernel's command line.
    pub(crate) fn wishes(&self, console: &str) -> String {
        let mut wishes = format!("fairlane.console={console} fairlane.host={}", self.name);
        if let Some(nic) = &self.nic {
            let card = match (self.kind, &nic.backend) {
                // User-Mode Linux's own driver names its first card so.
                (Kind::Uml, Backend::Tap(_)) => "vec0",
                _ => "eth0",
            };
            wishes += &format!(
                " fairlane.card={card} fairlane.mac={} fairlane.ip={}/{}",
                Mac(nic.mac),
                nic.address,
                nic.prefix
            );
        }
        wishes
    }

    /// Refuses what no guest can be called.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.bytes().all(fits) {
            let reason = "a name has 1 to 63 letters, digits and hyphens".to_owned();
            return Err(Error::Orders { guest: self.name.clone(), reason });
        }
        Ok(())
    }
}
