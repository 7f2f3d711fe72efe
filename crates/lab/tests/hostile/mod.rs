//! A guest that breaks the rules of its Xen card, and one beside it that must not notice.
//!
//! The guest has the card served by a program of its own, `fairlane-hostile`, on real grants and event channels.

use fairlane_engine::snapshot::{PortState, State};
use fairlane_lab::{Agent, Command, Error, Job, Machine, Node, Outcome};
use fairlane_load::ping;

use crate::{XL, await_that, vif};

/// What it does, and the reason its card is closed with; `{}` is the reference of its page.
const DEEDS: [(&str, &str); 6] = [
    ("index-that-runs", "the producer index 1073741824 is not within 256 slots after 0"),
    ("never-granted", "grant reference 3000000000 cannot be used: it was not granted, or withdrawn while in use"),
    ("over-the-edge", "a slot of 200 bytes at offset 4000 crosses the end of its page"),
    ("endless-chain", "a packet of more than 20 slots"),
    ("revoked-in-flight", "grant reference {} cannot be used: it was not granted, or withdrawn while in use"),
    ("read-only-buffer", "grant reference {} cannot be used: it was not granted, or withdrawn while in use"),
];

const WICKED: Node = Node::Guest(1);
const BYSTANDER: Node = Node::Guest(2);

/// Has the first guest do each deed, and then die in the midst of one. Each time its card alone is closed, the other guest loses
/// nothing, and in the end nothing of the dead one is mapped.
pub fn deeds(machine: &dyn Machine) -> Result<(), Error> {
    let (dom0, wicked) = (machine.agent(Node::Host), machine.agent(WICKED));
    // Frames are to wait in its ring, for seconds, and others are to come for it all the while.
    dom0.output(&["fairlane", "ctl", "set", "guest-1/0", "max_rate=1Mbit/s"])?;
    let _in_vain = ask(machine, WICKED, 300)?;
    for (deed, reason) in DEEDS {
        let reference = beside_traffic(machine, || wicked.output(&["hostile", deed]))?;
        let reason = reason.replace("{}", reference.trim());
        let found = port(dom0, WICKED)?.state;
        eprintln!("{deed}: {found:?}");
        assert_eq!(found, State::Disabled { reason }, "{deed}");
        assert_eq!(port(dom0, BYSTANDER)?.state, State::Up, "{deed}");
    }
    let before = port(dom0, WICKED)?.sent_frames;
    let argv = ["hostile", "ring-kept-full"].map(str::to_owned).to_vec();
    let _until_its_death = wicked.start_job(Command::Run { argv })?;
    await_that("frames of its ring are sent", || Ok(port(dom0, WICKED)?.sent_frames > before + 50))?;
    beside_traffic(machine, || dom0.output(&[XL, "destroy", "guest-1"]))?;
    // A domain that a page is mapped of stays in the list, without a name.
    await_that("no domain is left but dom0 and the other guest", || {
        let list = dom0.output(&[XL, "list"])?;
        eprintln!("{list}");
        Ok(list.lines().count() == 3)
    })
}

/// Does something while the external machine asks the other guest for echoes, of which none may be lost.
fn beside_traffic<T>(machine: &dyn Machine, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let trips = ask(machine, BYSTANDER, 15)?;
    let done = work()?;
    let Outcome::RoundTrips(trips) = trips.wait()? else { panic!("trips") };
    assert_eq!(trips.lost(), 0, "{:?}", trips.seconds);
    Ok(done)
}

/// Has the external machine begin to ask a guest for echoes, ten a second.
fn ask(machine: &dyn Machine, guest: Node, count: u16) -> Result<Job, Error> {
    let spec = ping::Spec { to: machine.address(guest), count, interval: 0.1, patience: 5.0 };
    machine.agent(Node::External).start_job(Command::Ping(spec))
}

/// What Fairlane shows of a guest's port.
fn port(dom0: &Agent, guest: Node) -> Result<PortState, Error> {
    Ok(vif(dom0, guest)?.expect("a card of that name").port)
}
