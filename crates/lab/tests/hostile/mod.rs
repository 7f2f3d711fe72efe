//! A guest whose frontend breaks the rules of its Xen card, and another guest that must not be affected.
//!
//! The frontend is a program in the guest, `fairlane-hostile`, with real grants and event channels.

use fairlane_engine::snapshot::{PortState, State};
use fairlane_lab::{Agent, Command, Error, Job, Machine, Node, Outcome};
use fairlane_load::ping;

use crate::{XL, await_that, vif};

/// Each attack, and the reason its card is disabled for; `{}` is the grant reference of its page.
const ATTACKS: [(&str, &str); 6] = [
    ("index-that-runs", "the producer index 1073741824 is not within 256 slots after 0"),
    ("never-granted", "grant reference 3000000000 cannot be used: it was not granted, or withdrawn while in use"),
    ("over-the-edge", "a slot of 200 bytes at offset 4000 crosses the end of its page"),
    ("endless-chain", "a packet of more than 20 slots"),
    ("revoked-in-flight", "grant reference {} cannot be used: it was not granted, or withdrawn while in use"),
    ("read-only-buffer", "grant reference {} cannot be used: it was not granted, or withdrawn while in use"),
];

const ATTACKER: Node = Node::Guest(1);
const BYSTANDER: Node = Node::Guest(2);

/// Runs each attack in the first guest, and destroys that guest during the last one. Each attack disables its card only, the other
/// guest loses no frame, and in the end no page of the destroyed guest is mapped.
pub(crate) fn attacks(machine: &dyn Machine) -> Result<(), Error> {
    let (dom0, attacker) = (machine.agent(Node::Host), machine.agent(ATTACKER));
    // With a low rate its frames wait in its ring for seconds; the pings keep frames for it coming.
    dom0.output(&["fairlane", "ctl", "set", "guest-1/0", "max_rate=1Mbit/s"])?;
    let _unanswered = start_ping(machine, ATTACKER, 300)?;
    for (attack, reason) in ATTACKS {
        let reference = during_ping(machine, || attacker.output(&["hostile", attack]))?;
        let reason = reason.replace("{}", reference.trim());
        let found = port(dom0, ATTACKER)?.state;
        eprintln!("{attack}: {found:?}");
        assert_eq!(found, State::Disabled { reason }, "{attack}");
        assert_eq!(port(dom0, BYSTANDER)?.state, State::Up, "{attack}");
    }
    let before = port(dom0, ATTACKER)?.sent_frames;
    let argv = ["hostile", "ring-kept-full"].map(str::to_owned).to_vec();
    let _until_destroyed = attacker.start_job(Command::Run { argv })?;
    await_that("frames of its ring are sent", || Ok(port(dom0, ATTACKER)?.sent_frames > before + 50))?;
    during_ping(machine, || dom0.output(&[XL, "destroy", "guest-1"]))?;
    // A domain with a mapped page stays in the list, without a name.
    await_that("no domain is left but dom0 and the other guest", || {
        let list = dom0.output(&[XL, "list"])?;
        eprintln!("{list}");
        Ok(list.lines().count() == 3)
    })
}

/// Runs `work` while the external machine pings the other guest, and checks that no reply is lost.
fn during_ping<T>(machine: &dyn Machine, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let trips = start_ping(machine, BYSTANDER, 15)?;
    let done = work()?;
    let Outcome::RoundTrips(trips) = trips.wait()? else { panic!("trips") };
    assert_eq!(trips.lost(), 0, "{:?}", trips.seconds);
    Ok(done)
}

/// Starts to ping a guest from the external machine, ten times per second.
fn start_ping(machine: &dyn Machine, guest: Node, count: u16) -> Result<Job, Error> {
    let spec = ping::Spec { to: machine.address(guest), count, interval: 0.1, patience: 5.0 };
    machine.agent(Node::External).start_job(Command::Ping(spec))
}

/// Fairlane's state of a guest's port.
fn port(dom0: &Agent, guest: Node) -> Result<PortState, Error> {
    Ok(vif(dom0, guest)?.expect("a card of that name").port)
}
