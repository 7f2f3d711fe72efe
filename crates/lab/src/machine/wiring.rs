//! How a host's cards are joined, limited and addressed: `ip`, `tc` and `ethtool`, run by the agents of the nodes.

use fairlane_agent::{Command, Outcome};

use super::Machine;
use crate::topology::{Backend, Join, Node, PREFIX, Topology};
use crate::{Agent, Error};

/// The name of the host's end of the link.
pub(crate) const UPLINK: &str = "uplink";

/// The name of a node's card, where it is in a namespace or an emulated computer.
pub(crate) const CARD: &str = "eth0";

/// The name of the host's bridge.
const BRIDGE: &str = "br0";

/// The largest frame of an Ethernet with its usual MTU, in bytes.
const FRAME: f64 = 1514.0;

/// What a guest's kernel is told of its card, for its agent.
pub(crate) fn wishes(node: Node) -> String {
    format!("fairlane.card={CARD} fairlane.mac={} fairlane.ip={}/{PREFIX}", node.mac(), node.address())
}

/// The host's name of a guest's card.
pub(crate) fn vif(guest: usize) -> String {
    format!("vif{guest}")
}

/// Runs `ip` with the words of a line.
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
            let reason = format!("a hello was asked for, and the answer is {other:?}");
            Err(Error::Failed { guest: agent.name().to_owned(), reason })
        }
    }
}

/// A cable between the host's namespace, where its end is `name`, and a node's, where it is the card, which comes up.
pub(crate) fn cable(host: &Agent, name: &str, agent: &Agent, node: Node) -> Result<(), Error> {
    let (_, pid) = hello(agent)?;
    ip(host, &format!("link add {name} type veth peer name {CARD} netns {pid}"))?;
    bring_up(agent, node, CARD)
}

/// Starts an agent as a node in a network namespace of the host's, named as the node, and on CPUs.
pub(crate) fn start_named(host: &Agent, node: Node, cpus: &str) -> Result<Agent, Error> {
    ip(host, &format!("netns add {node}"))?;
    let network = format!("named={node}");
    let argv = ["/init", "place", &network, cpus, "/init", "serve"].map(str::to_owned).to_vec();
    host.run(Command::Spawn { name: node.to_string(), argv })?;
    Ok(host.guest(&node.to_string()))
}

/// As [`cable`], to a node that is in the network namespace `ip` knows by the node's name.
pub(crate) fn cable_named(host: &Agent, name: &str, agent: &Agent, node: Node) -> Result<(), Error> {
    ip(host, &format!("link add {name} type veth peer name {CARD} netns {node}"))?;
    bring_up(agent, node, CARD)
}

/// Keeps IPv6 from adding frames of its own to what is measured, and brings the loopback up. Before any card is there.
pub(crate) fn quieten(agent: &Agent) -> Result<(), Error> {
    for who in ["default", "all"] {
        let path = format!("/proc/sys/net/ipv6/conf/{who}/disable_ipv6").into();
        // A kernel without IPv6 has no such file.
        let _ = agent.run(Command::Write { path, text: "1".to_owned() });
    }
    ip(agent, "link set lo up")
}

/// What a node is to do for its connections to the network to begin with so many segments.
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

/// Joins the host's cards, those of its guests and [`UPLINK`], which are there and down.
pub(crate) fn join(host: &Agent, join: Join, guests: usize) -> Result<(), Error> {
    match join {
        Join::Bridge => {
            // Spanning tree and multicast snooping would send frames of their own.
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
                // Each side asks for the other's MAC address, and is answered with the host's: at once, where this may be
                // set (in a user namespace it may not, and the first answer comes after up to 0.8 s).
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

/// Waits until the kernel, which sees to it in its own time, has noticed that a card has a carrier: frames before are lost.
pub(crate) fn await_state(agent: &Agent, card: &str, state: &str) -> Result<(), Error> {
    agent.await_output(&["ip", "-d", "-o", "link", "show", card], state).map(drop)
}

/// Has no card of a machine pass segments that are longer than a frame. Checksums are still left to the cards.
pub(crate) fn frame_by_frame(machine: &dyn Machine, topology: &Topology) -> Result<(), Error> {
    let guests = 1..=topology.joined();
    // Fairlane's ends of guests' cards are none of the kernel's.
    let vifs = guests.clone().filter(|_| topology.backend == Backend::Kernel).map(vif);
    let of_host = vifs.chain([UPLINK.to_owned()]).map(|card| (Node::Host, card));
    let own = guests.map(Node::Guest).chain([Node::External]).map(|node| (node, CARD.to_owned()));
    for (node, card) in of_host.chain(own) {
        run(machine.agent(node), "ethtool", &format!("-K {card} tso off gso off gro off"))?;
    }
    Ok(())
}

/// Limits what a card sends, in bits per second. What its queue has no room for is dropped.
pub(crate) fn limit(agent: &Agent, card: &str, rate: f64) -> Result<(), Error> {
    let bucket = Bucket::of(rate);
    let (burst, queue) = (bucket.burst, bucket.queue);
    run(agent, "tc", &format!("qdisc add dev {card} root tbf rate {rate:.0}bit burst {burst:.0} limit {queue:.0}"))
}

/// Limits what the guest behind a tap sends: frames that come in are led through an intermediate device, for a queue is
/// only where frames leave.
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
    /// What may be sent at once: a millisecond's worth, two frames at least.
    pub burst: f64,
    /// What may wait: 20 ms' worth, 32 frames at least.
    pub queue: f64,
}

impl Bucket {
    /// The settings for a rate in bits per second.
    pub fn of(rate: f64) -> Bucket {
        Bucket { burst: (rate / 8.0 * 1e-3).max(2.0 * FRAME), queue: (rate / 8.0 * 20e-3).max(32.0 * FRAME) }
    }
}
