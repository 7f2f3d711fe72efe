//! Configures the cards of the nodes: the agents run `ip`, `tc` and `ethtool`.

use fairlane_agent::{Command, Outcome};

use super::Machine;
use crate::topology::{Backend, Join, Node, PREFIX, Topology};
use crate::{Agent, Error};

/// The name of the host's end of the link.
pub(crate) const UPLINK: &str = "uplink";

/// The name of a node's card inside the node.
pub(crate) const CARD: &str = "eth0";

/// The name of the host's bridge.
const BRIDGE: &str = "br0";

/// The largest frame of an Ethernet with its usual MTU, in bytes.
const FRAME: f64 = 1514.0;

/// The part of a guest's kernel command line that tells its agent how to configure its card.
pub(crate) fn card_arguments(node: Node) -> String {
    format!("fairlane.card={CARD} fairlane.mac={} fairlane.ip={}/{PREFIX}", node.mac(), node.address())
}

/// The host's name of a guest's card.
pub(crate) fn vif(guest: usize) -> String {
    format!("vif{guest}")
}

/// Runs `ip` with the words of a line as arguments.
pub(crate) fn ip(agent: &Agent, line: &str) -> Result<(), Error> {
    run(agent, "ip", line)
}

fn run(agent: &Agent, program: &str, line: &str) -> Result<(), Error> {
    let words: Vec<&str> = [program].into_iter().chain(line.split(' ')).collect();
    agent.output(&words).map(drop)
}

/// The release of a node's kernel, and its agent's process id.
pub(crate) fn hello(agent: &Agent) -> Result<(String, u32), Error> {
    match agent.run(Command::Hello)? {
        Outcome::Hello { kernel, pid, .. } => Ok((kernel, pid)),
        other => {
            let reason = format!("the answer to hello is {other:?}");
            Err(Error::Failed { guest: agent.name().to_owned(), reason })
        }
    }
}

/// Creates a veth pair between the host's namespace, where its end is `name`, and a node's, where it is the card. Brings the card up.
pub(crate) fn cable(host: &Agent, name: &str, agent: &Agent, node: Node) -> Result<(), Error> {
    let (_, pid) = hello(agent)?;
    ip(host, &format!("link add {name} type veth peer name {CARD} netns {pid}"))?;
    bring_up(agent, node, CARD)
}

/// Starts a node as an agent in a network namespace of the host with the node's name, on the given CPUs.
pub(crate) fn start_named(host: &Agent, node: Node, cpus: &str) -> Result<Agent, Error> {
    ip(host, &format!("netns add {node}"))?;
    let network = format!("named={node}");
    let argv = ["/init", "place", &network, cpus, "/init", "serve"].map(str::to_owned).to_vec();
    host.run(Command::Spawn { name: node.to_string(), argv })?;
    Ok(host.guest(&node.to_string()))
}

/// As [`cable`], to a node in the network namespace that has the node's name.
pub(crate) fn cable_named(host: &Agent, name: &str, agent: &Agent, node: Node) -> Result<(), Error> {
    ip(host, &format!("link add {name} type veth peer name {CARD} netns {node}"))?;
    bring_up(agent, node, CARD)
}

/// Disables IPv6, whose own frames would be measured too, and brings the loopback up. To be called before any card exists.
pub(crate) fn prepare_network(agent: &Agent) -> Result<(), Error> {
    for scope in ["default", "all"] {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").into();
        // A kernel without IPv6 has no such file.
        let _ = agent.run(Command::Write { path, text: "1".to_owned() });
    }
    ip(agent, "link set lo up")
}

/// The command that sets the initial congestion window, in segments, of a node's connections on the shared network.
pub(crate) fn set_initial_window(node: Node, segments: u32) -> Command {
    let own = node.address();
    let [a, b, c, _] = own.octets();
    let card = if node == Node::Host { UPLINK } else { CARD };
    let line = format!("ip route replace {a}.{b}.{c}.0/{PREFIX} dev {card} src {own} initcwnd {segments}");
    Command::Run { argv: line.split(' ').map(str::to_owned).collect() }
}

/// Gives a node's card its addresses and brings it up.
pub(crate) fn bring_up(agent: &Agent, node: Node, card: &str) -> Result<(), Error> {
    ip(agent, &format!("link set {card} address {}", node.mac()))?;
    ip(agent, &format!("addr add {}/{PREFIX} dev {card}", node.address()))?;
    ip(agent, &format!("link set {card} up"))
}

/// Connects the host's cards: those of its guests and [`UPLINK`], which must exist and be down.
pub(crate) fn join(host: &Agent, join: Join, guests: usize) -> Result<(), Error> {
    match join {
        Join::Bridge => {
            // Spanning tree and multicast snooping would send their own frames.
            ip(host, &format!("link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"))?;
            for card in (1..=guests).map(vif).chain([UPLINK.to_owned()]) {
                ip(host, &format!("link set {card} master {BRIDGE} up"))?;
            }
            bring_up(host, Node::Host, BRIDGE)?;
            let mut cards = (1..=guests).map(vif).chain([UPLINK.to_owned()]);
            cards.try_for_each(|card| await_state(host, &card, "state forwarding"))
        }
        Join::Plain => {
            let write = |name: &str, value: &str| {
                let path = format!("/proc/sys/net/ipv4/{name}").into();
                host.run(Command::Write { path, text: value.to_owned() })
            };
            write("ip_forward", "1")?;
            for (card, node) in [(vif(1), Node::Guest(1)), (UPLINK.to_owned(), Node::External)] {
                // The host answers each side's ARP requests for the other with its own MAC address: at once if `proxy_delay` can be
                // set. In a user namespace it cannot, and the first answer takes up to 0.8 s.
                write(&format!("conf/{card}/proxy_arp"), "1")?;
                let _ = write(&format!("neigh/{card}/proxy_delay"), "0");
                ip(host, &format!("link set {card} up"))?;
                ip(host, &format!("addr add {}/32 dev {card}", Node::Host.address()))?;
                ip(host, &format!("route add {}/32 dev {card} src {}", node.address(), Node::Host.address()))?;
            }
            await_state(host, &vif(1), "state UP")?;
            await_state(host, UPLINK, "state UP")
        }
    }
}

/// Waits until a card's line in `ip link` contains `state`. The kernel notices a carrier late, and frames before that are lost.
pub(crate) fn await_state(agent: &Agent, card: &str, state: &str) -> Result<(), Error> {
    agent.await_output(&["ip", "-d", "-o", "link", "show", card], state).map(drop)
}

/// Disables segmentation offloads (TSO, GSO, GRO) on all cards of a machine. Checksum offloads stay enabled.
pub(crate) fn disable_offloads(machine: &dyn Machine, topology: &Topology) -> Result<(), Error> {
    let guests = 1..=topology.joined();
    // Fairlane's ends of guests' cards are not kernel devices.
    let vifs = guests.clone().filter(|_| topology.backend == Backend::Kernel).map(vif);
    let of_host = vifs.chain([UPLINK.to_owned()]).map(|card| (Node::Host, card));
    let own = guests.map(Node::Guest).chain([Node::External]).map(|node| (node, CARD.to_owned()));
    for (node, card) in of_host.chain(own) {
        run(machine.agent(node), "ethtool", &format!("-K {card} tso off gso off gro off"))?;
    }
    Ok(())
}

/// Limits a card's sending rate, in bits per second. Frames that its queue has no room for are dropped.
pub(crate) fn limit(agent: &Agent, card: &str, rate: f64) -> Result<(), Error> {
    let bucket = Bucket::of(rate);
    let (burst, queue) = (bucket.burst, bucket.queue);
    run(agent, "tc", &format!("qdisc add dev {card} root tbf rate {rate:.0}bit burst {burst:.0} limit {queue:.0}"))
}

/// Limits the sending rate of the guest on a tap. Its frames are redirected through an intermediate device (ifb), as the kernel
/// shapes outgoing traffic only.
pub(crate) fn limit_incoming(host: &Agent, tap: &str, rate: f64) -> Result<(), Error> {
    let device = format!("{tap}-in");
    ip(host, &format!("link add {device} type ifb"))?;
    ip(host, &format!("link set {device} up"))?;
    run(host, "tc", &format!("qdisc add dev {tap} handle ffff: ingress"))?;
    let redirect = format!("action mirred egress redirect dev {device}");
    run(host, "tc", &format!("filter add dev {tap} parent ffff: protocol all u32 match u32 0 0 {redirect}"))?;
    limit(host, &device, rate)
}

/// A token bucket's settings, in bytes.
pub(crate) struct Bucket {
    /// The burst: 1 ms at the rate, but at least two frames.
    pub burst: f64,
    /// The queue: 20 ms at the rate, but at least 32 frames.
    pub queue: f64,
}

impl Bucket {
    /// The settings for a rate in bits per second.
    pub(super) fn of(rate: f64) -> Bucket {
        Bucket { burst: (rate / 8.0 * 1e-3).max(2.0 * FRAME), queue: (rate / 8.0 * 20e-3).max(32.0 * FRAME) }
    }
}
