//! What a policy meets on this host: network interfaces, libvirt, Xen.

use nix::ifaddrs::getifaddrs;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The directory of interfaces in sysfs.
const INTERFACES: &str = "/sys/class/net";

/// ARPHRD_ETHER of `linux/if_arp.h`.
const ETHERNET: &str = "1";

/// This host.
pub(crate) struct Host {
    /// Ethernet interfaces, by name.
    pub interfaces: Vec<Interface>,
    /// The user that libvirt runs QEMU as, if libvirt is installed.
    pub libvirt: Option<&'static str>,
    /// Whether it is a Xen domain that can serve other domains' cards.
    pub xen: bool,
}

/// An Ethernet interface.
pub(crate) struct Interface {
    pub name: String,
    pub kind: Kind,
    /// Whether it is a device of this computer, or made of some (a bond, a VLAN): not one end of a veth pair, as containers have.
    pub is_hardware: bool,
    /// The bridge, bond or the like that it is a port of.
    pub master: Option<String>,
    /// Whether it is administratively up.
    pub is_up: bool,
    /// Its speed in bits a second, if it has one.
    pub speed: Option<u64>,
    /// Whether the host has an IP address on it, other than a link-local one of IPv6.
    pub has_address: bool,
}

/// The kind of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bridge,
    Tap {
        /// Whether it was created for several queues.
        has_queues: bool,
    },
    /// A card, a part of one, or one end of a veth pair.
    Card,
}

impl Host {
    /// Looks at this host. What cannot be read counts as absent.
    pub(crate) fn look() -> Host {
        let addressed = addressed();
        let names = fs::read_dir(INTERFACES).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let mut interfaces: Vec<Interface> = names.filter_map(|name| Interface::look(name, &addressed)).collect();
        interfaces.sort_by(|one, other| one.name.cmp(&other.name));
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let is_user = |name: &&str| users.lines().any(|line| line.split(':').next() == Some(name));
        Host {
            interfaces,
            // Debian's and Fedora's name.
            libvirt: ["libvirt-qemu", "qemu"].into_iter().find(is_user),
            xen: Path::new("/dev/xen/gntdev").exists(),
        }
    }

    /// The interface with this name.
    pub(crate) fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The ports of a bridge.
    pub(crate) fn ports_of(&self, bridge: &str) -> impl Iterator<Item = &Interface> + Clone {
        self.interfaces.iter().filter(move |port| port.master.as_deref() == Some(bridge))
    }
}

impl Interface {
    fn look(name: String, addressed: &HashSet<String>) -> Option<Interface> {
        let place = Path::new(INTERFACES).join(&name);
        let text = |file: &str| fs::read_to_string(place.join(file)).map(|text| text.trim().to_owned()).ok();
        if text("type")? != ETHERNET {
            return None;
        }
        let hexadecimal = |text: String| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let kind = match text("tun_flags") {
            _ if place.join("bridge").exists() => Kind::Bridge,
            // IFF_MULTI_QUEUE
            Some(flags) => Kind::Tap { has_queues: hexadecimal(flags).is_some_and(|flags| flags & 0x100 != 0) },
            None => Kind::Card,
        };
        let master = fs::read_link(place.join("master")).ok();
        let master = master.and_then(|master| Some(master.file_name()?.to_str()?.to_owned()));
        let flags = text("flags").and_then(hexadecimal);
        let is_hardware = kind == Kind::Card && is_hardware(&place);
        // In Mbit/s; -1 if unknown.
        let speed = text("speed").and_then(|speed| speed.parse::<u64>().ok()).filter(|speed| *speed > 0);
        Some(Interface {
            kind,
            is_hardware,
            master,
            // IFF_UP
            is_up: flags.is_some_and(|flags| flags & 1 != 0),
            speed: speed.map(|speed| speed.saturating_mul(1_000_000)),
            has_address: addressed.contains(&name),
            name,
        })
    }
}

/// Whether an interface, by its place in sysfs, or one below it is a device of this computer.
fn is_hardware(interface: &Path) -> bool {
    let entries = fs::read_dir(interface).into_iter().flatten().flatten();
    let mut below = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"lower_"));
    interface.join("device").exists() || below.any(|entry| is_hardware(&entry.path()))
}

/// The interfaces on which the host has an address.
fn addressed() -> HashSet<String> {
    let addresses = getifaddrs().into_iter().flatten();
    let is_own = |address: &nix::ifaddrs::InterfaceAddress| {
        address.address.as_ref().is_some_and(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(_), _) => true,
            (_, Some(address)) => !address.ip().is_unicast_link_local(),
            _ => false,
        })
    };
    addresses.filter(is_own).map(|address| address.interface_name).collect()
}
