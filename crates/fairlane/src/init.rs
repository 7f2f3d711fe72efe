//! Writes a policy for this host to start with.

use crate::host::{Host, Interface, Kind};
use crate::out;
use crate::policy_file;
use anyhow::bail;
use fairlane_policy::units::format_rate;
use std::path::PathBuf;

/// Look at this host and write a commented policy to start with
///
/// The policy has one link, whose uplink is a tap for the host's bridge, or a card that the host does not use itself, and one vif.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to write, such as /etc/fairlane/policy.toml
    policy: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// Writes the policy, and says what it is about.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let choice = Choice::of(&Host::look());
    let path = args.policy.display();
    if !args.force && args.policy.exists() {
        bail!("{path} exists: --force replaces it");
    }
    policy_file::replace(&args.policy, &choice.policy())?;
    out::print(&format!("{path}: {}\nNext: `fairlane check {path}` says what it does.\n", choice.summary()))
}

/// What the policy does with the host.
struct Choice {
    uplink: Uplink,
    /// The speed of the card below, in bits a second; none if there is no card.
    speed: Option<u64>,
    libvirt: Option<&'static str>,
    xen: bool,
}

/// The uplink.
enum Uplink {
    /// A tap that belongs into this bridge, which has these ports.
    Bridge(String, Vec<String>),
    /// A card that the host does not use itself.
    Card(String),
    /// A tap to the host, as this card is the host's own.
    Host(String),
    /// There is nothing to lead to.
    None,
}

impl Choice {
    fn of(host: &Host) -> Choice {
        let bridges = host.interfaces.iter().filter(|interface| interface.kind == Kind::Bridge);
        // The one with a card leads to the network; libvirt's own bridge, for example, has none.
        let has_card = |bridge: &&Interface| host.ports_of(&bridge.name).any(|port| port.is_hardware);
        let is_free_card = |card: &&Interface| card.is_hardware && card.master.is_none() && card.is_up;
        let cards = || host.interfaces.iter().filter(is_free_card);
        let into = |bridge: &Interface| {
            let ports = host.ports_of(&bridge.name);
            let speed = ports.clone().filter(|port| port.is_hardware).filter_map(|port| port.speed).min();
            (Uplink::Bridge(bridge.name.clone(), ports.map(|port| port.name.clone()).collect()), speed)
        };
        let (uplink, speed) = if let Some(bridge) = bridges.clone().find(has_card) {
            into(bridge)
        } else if let Some(card) = cards().find(|card| !card.has_address) {
            (Uplink::Card(card.name.clone()), card.speed)
        } else if let Some(bridge) = bridges.clone().find(|bridge| bridge.is_up) {
            into(bridge)
        } else if let Some(card) = cards().next() {
            (Uplink::Host(card.name.clone()), None)
        } else {
            (Uplink::None, None)
        };
        Choice { uplink, speed, libvirt: host.libvirt, xen: host.xen }
    }

    /// What was found, in a sentence.
    fn summary(&self) -> String {
        match &self.uplink {
            Uplink::Bridge(bridge, _) => format!("guests reach the bridge {bridge} by the tap fl0"),
            Uplink::Card(card) => {
                format!("guests have the card {card}, on which this host has no address, for themselves")
            }
            Uplink::Host(card) => format!("guests reach this host by the tap fl0, as {card} is the host's own"),
            Uplink::None => "guests reach each other, as there is no bridge and no card that is up".to_owned(),
        }
    }

    fn policy(&self) -> String {
        let (uplink, rate) = (self.uplink_lines(), self.rate_lines());
        let xen = if self.xen { XEN } else { "" };
        let libvirt = self.libvirt.map_or(String::new(), |user| {
            format!("# libvirt runs QEMU as {user}. Let it open the sockets:\n#   usermod --append --groups fairlane {user}\n")
        });
        format!("{HEAD}{rate}{uplink}{xen}{VIF}{libvirt}{SHARE}")
    }

    fn rate_lines(&self) -> String {
        match self.speed {
            Some(speed) => format!(
                "# A little below the speed of the card, {}: frames then wait in their guests' rings, where weights count.\n\
                 rate = \"{}\"\n",
                format_rate(speed),
                format_rate(speed / 100 * 95)
            ),
            None => "# A little below the speed of the network, so that frames wait in their guests' rings, where weights count.\n\
                     # rate = \"950Mbit/s\"\n"
                .to_owned(),
        }
    }

    fn uplink_lines(&self) -> String {
        match &self.uplink {
            Uplink::Bridge(bridge, ports) => {
                let ports = if ports.is_empty() { "none".to_owned() } else { ports.join(", ") };
                format!(
                    "# A port of the bridge {bridge} (its ports now: {ports}). Make the tap at each boot, before the service: it then stays\n\
                     # in the bridge while the service is restarted.\n\
                     #   ip tuntap add dev fl0 mode tap multi_queue user fairlane && ip link set fl0 master {bridge} up\n\
                     uplink = {{ tap = \"fl0\" }}\n"
                )
            }
            Uplink::Card(card) => format!(
                "# {card} is up, and the host has no address on it. Host and guests cannot reach each other through it.\n\
                 # {{ xdp = \"{card}\" }} is the same through AF_XDP, for many small frames.\n\
                 uplink = {{ card = \"{card}\" }}\n"
            ),
            Uplink::Host(card) => format!(
                "# A tap to this host: give it an address, and route between it and {card}. For guests in the same network as {card},\n\
                 # put {card} and fl0 into a bridge, which gets the host's address.\n\
                 #   ip tuntap add dev fl0 mode tap multi_queue user fairlane && ip link set fl0 up && ip address add 10.0.0.1/24 dev fl0\n\
                 uplink = {{ tap = \"fl0\" }}\n"
            ),
            Uplink::None => NO_UPLINK.to_owned(),
        }
    }
}

const HEAD: &str = "\
#:schema file:///usr/share/fairlane/policy.schema.json
# The guests' cards, the links they share, and how they share them: a start, written by `fairlane init` after a look at this host.
# `fairlane check` says what it does, `systemctl reload fairlane` applies changes of vifs and shares to running guests.

# Guests on a link reach each other, and share its uplink.
[[link]]
name = \"lan\"
";

const NO_UPLINK: &str = "\
# There is no bridge, and no card that is up. A tap leads to this host; { card = \"eth0\" } is a card.
# uplink = { tap = \"fl0\" }
";

const XEN: &str = "\
# This host is a Xen domain with guests: the link serves each guest's card that no [[vif]] names. Keep xen-netback from loading.
xen = true
";

const VIF: &str = "
# A guest's card, to which QEMU connects over this socket. Add one of these for each card.
[[vif]]
name = \"guest\"
socket = \"/run/fairlane/guest.sock\"
";

const SHARE: &str = "\
# Its share beside others', what it gets first, and what it never exceeds. What its guest receives: the same with rx_ before.
# weight = 100
# min_rate = \"100Mbit/s\"
# max_rate = \"500Mbit/s\"
";

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_policy::Policy;

    fn interface(name: &str, kind: Kind, master: Option<&str>, has_address: bool) -> Interface {
        let (name, master) = (name.to_owned(), master.map(str::to_owned));
        let speed = (kind == Kind::Card).then_some(10_000_000_000);
        Interface { name, kind, is_hardware: kind == Kind::Card, master, is_up: true, speed, has_address }
    }

    /// The policy for these interfaces, which must be valid.
    fn policy(interfaces: Vec<Interface>, xen: bool) -> Policy {
        let text = Choice::of(&Host { interfaces, libvirt: Some("libvirt-qemu"), xen }).policy();
        Policy::parse("p", &text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
    }

    #[test]
    fn the_uplink_is_what_the_host_has() {
        let tap = fairlane_policy::Uplink::Tap { name: "fl0".to_owned() };
        let bridge = |name| interface(name, Kind::Bridge, None, true);
        let port = interface("eth0", Kind::Card, Some("br0"), false);
        let found = policy(vec![bridge("a-bridge"), bridge("br0"), port], false);
        assert_eq!((&found.links[0].uplink, found.links[0].rate), (&tap, Some(9_500_000_000)));

        let spare = vec![interface("eth0", Kind::Card, None, true), interface("eth1", Kind::Card, None, false)];
        let card = fairlane_policy::Uplink::Card { name: "eth1".to_owned() };
        assert_eq!(policy(spare, false).links[0].uplink, card);
        let own = vec![interface("eth0", Kind::Card, None, true)];
        assert_eq!(policy(own, false).links[0].uplink, tap);
        // Containers' are no cards, whether in a bridge or not.
        let veth = |master| Interface { is_hardware: false, ..interface("a-veth", Kind::Card, master, false) };
        let port = interface("eth0", Kind::Card, Some("br0"), false);
        let found = Choice::of(&Host {
            interfaces: vec![bridge("a-bridge"), veth(Some("a-bridge")), bridge("br0"), port],
            libvirt: None,
            xen: false,
        });
        assert_eq!(found.summary(), "guests reach the bridge br0 by the tap fl0");
        let spare = policy(vec![bridge("a-bridge"), veth(None), interface("eth1", Kind::Card, None, false)], false);
        assert_eq!(spare.links[0].uplink, card);
        assert_eq!(policy(vec![veth(None)], false).links[0].uplink, fairlane_policy::Uplink::None);
        let none = policy(vec![interface("fl0", Kind::Tap { has_queues: true }, None, true)], true);
        assert_eq!((&none.links[0].uplink, none.links[0].xen), (&fairlane_policy::Uplink::None, true));
    }
}
