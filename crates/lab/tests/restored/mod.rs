//! Xen saves a guest to a file and restores it as another domain, while it receives a TCP stream.

use std::time::Instant;

use fairlane_engine::snapshot::FlowState;
use fairlane_lab::{Agent, Command, Error, Job, Machine, Node, Outcome};
use fairlane_load::ServeSpec;
use fairlane_load::digest::{Reader, Spec};

use crate::{XL, await_that, vif};

const GUEST: Node = Node::Guest(2);
/// In devtmpfs, as the root file system has too little room.
const SAVED: &str = "/dev/guest.save";
/// In a directory that the confined backend may write to.
const FLOWS: &str = "/run/fairlane/guest.flows";

/// Bytes of the first attempt: usually enough that the guest is paused before they are sent.
const BYTES: u64 = 80_000_000;

/// All bytes arrive although the frames in the old domain's rings are lost, and early ack continues for the new domain.
pub(crate) fn in_mid_transfer(machine: &dyn Machine) -> Result<(), Error> {
    let (dom0, guest) = (machine.agent(Node::Host), machine.agent(GUEST));
    let (name, card) = (GUEST.to_string(), format!("{GUEST}/0"));
    enable_early_ack(dom0, &card)?;
    let serving = guest.start_job(Command::DigestServe(ServeSpec { port: 5004, seconds: 600.0 }))?;
    serving.started()?;
    let (sending, begun, owed) = paused_in_mid_transfer(machine, &name)?;
    let exported = dom0.output(&["fairlane", "ctl", "flows", "export", &card, FLOWS])?;
    dom0.output(&[XL, "destroy", &name])?;
    await_that("its card is gone", || Ok(vif(dom0, GUEST)?.is_none()))?;
    dom0.output(&[XL, "restore", "-p", SAVED])?;
    enable_early_ack(dom0, &card)?;
    let imported = dom0.output(&["fairlane", "ctl", "flows", "import", &card, FLOWS])?;
    assert_eq!(imported, "1 flow taken over\n");
    assert_eq!(flows(dom0)?.iter().map(|flow| flow.owed).sum::<u32>(), owed);
    dom0.output(&[XL, "unpause", &name])?;
    let away = begun.elapsed().as_secs_f64();
    let _console = attach(dom0, &name)?;

    await_that("bytes are acknowledged for the guest again", || is_accelerated(dom0))?;
    let Outcome::Hello { .. } = guest.run(Command::Hello)? else { panic!("hello") };
    let Outcome::Sent(sent) = sending.wait()? else { panic!("sent") };
    let early = vif(dom0, GUEST)?.and_then(|vif| vif.early_ack).expect("early ack of the restored guest's card");
    eprintln!("{sent:?}; away for {away:.1} s with {owed} bytes owed, {}; {early:?}", exported.trim());
    assert_eq!(early.resets, 0, "{early:?}");
    dom0.output(&["fairlane", "ctl", "set", &card, "early_ack=false"])?;
    Ok(())
}

/// Sends to the guest and saves it; repeats with more bytes until the guest is paused before all have arrived. Returns the sender's
/// job, the time of the pause, and the bytes owed to the guest.
fn paused_in_mid_transfer(machine: &dyn Machine, name: &str) -> Result<(Job, Instant, u32), Error> {
    let dom0 = machine.agent(Node::Host);
    let to = (machine.address(GUEST), 5004).into();
    for bytes in [BYTES, 4 * BYTES, 16 * BYTES, 64 * BYTES] {
        let spec = Spec { to, reader: Reader::Quick, bytes, patience: 90.0 };
        let sending = machine.agent(Node::External).start_job(Command::DigestSend(spec))?;
        await_that("bytes are acknowledged for the guest", || is_accelerated(dom0))?;
        let begun = Instant::now();
        dom0.output(&[XL, "save", "-p", name, SAVED])?;
        let owed = flows(dom0)?.iter().map(|flow| flow.owed).sum();
        if owed > 0 {
            return Ok((sending, begun, owed));
        }
        dom0.output(&[XL, "unpause", name])?;
        sending.wait()?;
    }
    panic!("a guest that {} bytes are sent to was paused too late each time", 64 * BYTES);
}

/// Enables early ack for a card, once Fairlane has found it.
fn enable_early_ack(dom0: &Agent, card: &str) -> Result<(), Error> {
    let argv = ["fairlane", "ctl", "--json", "set", card, "early_ack=always"].map(str::to_owned).to_vec();
    dom0.run(Command::Await { argv, text: "null".to_owned(), seconds: 20.0 }).map(drop)
}

/// Attaches to the console of a guest's agent. The agent runs already and does not report that it is ready, so the job has no end.
fn attach(dom0: &Agent, name: &str) -> Result<Job, Error> {
    let domain = dom0.output(&[XL, "domid", name])?;
    let console = dom0.output(&["xenstore-read", &format!("/local/domain/{}/console/tty", domain.trim())])?;
    dom0.start_job(Command::Attach { name: name.to_owned(), console: console.trim().into() })
}

/// Early ack's flows.
fn flows(dom0: &Agent) -> Result<Vec<FlowState>, Error> {
    Ok(serde_json::from_str(&dom0.output(&["fairlane", "ctl", "--json", "show", "flows"])?).unwrap())
}

/// Whether an active flow has early ACKs.
fn is_accelerated(dom0: &Agent) -> Result<bool, Error> {
    Ok(flows(dom0)?.iter().any(|flow| flow.state == "active" && flow.early_acks > 0))
}
