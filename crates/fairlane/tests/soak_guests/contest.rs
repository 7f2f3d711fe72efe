//! A contest: two guests flood the link with a fixed rate during an attack. Each gets its share of the link, and loses no datagram.

use crate::daemon::vif;
use crate::events::{attack_during, random_case, weights};
use crate::hostile::cases::Case;
use crate::invariants::eventually;
use crate::world::{GUESTS, Settings, WEIGHT, World};
use fairlane_engine::snapshot::{PortState, Snapshot};
use fairlane_lab::{Command, Error, Job, Outcome};
use fairlane_load::{ReceiveSpec, Received, Sent, udp};
use fairlane_report::stats::median;
use rand::rngs::StdRng;
use std::thread;
use std::time::{Duration, Instant};

/// Smallest fraction of its share that a guest must keep.
const MIN_KEPT: f64 = 0.95;

/// Duration of the attack before shares are measured, length of a measurement, and number of measurements.
const LEAD: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_millis(300);
const WINDOWS: u32 = 4;

/// How long the two guests send, in seconds: longer than the measurements.
const SENDING: f64 = 3.0;

/// After this many sent bytes, a guest's flood has started.
const STARTED: u64 = 100_000;

/// How often to repeat a contest whose measurements took longer than the flood, because of other work of this machine.
const TRIES: u32 = 5;

/// The UDP port for the first guest; the others follow.
const PORT: u16 = 5001;

/// The sending guests and the receiving one, as indices of [`GUESTS`].
const SENDERS: [usize; 2] = [0, 1];
const RECEIVER: usize = 2;

/// Runs a contest, and repeats it if a guest seems to be harmed: other work of this machine at the wrong moment looks the same.
///
/// # Errors
/// A guest ended.
pub(crate) fn run(world: &mut World, random: &mut StdRng) -> Result<(), Error> {
    let weights = weights(random);
    world.reload(Settings { rate: 20, weights });
    let case = random_case(world, random);
    let harm = harm(world, case)?;
    if !harm.is_empty() {
        world.journal.write(format_args!("repeated: {harm:?}"));
        let harm = self::harm(world, case)?;
        assert!(harm.is_empty(), "{harm:?}");
    }
    Ok(())
}

/// Descriptions of the harm that an attack does to the two guests.
fn harm(world: &mut World, case: &'static Case) -> Result<Vec<String>, Error> {
    for _ in 0..TRIES {
        if let Some(harm) = measure(world, case)? {
            return Ok(harm);
        }
        world.journal.write("too slow to measure");
    }
    Ok(Vec::new())
}

/// Like [`harm`]; none if the measurements took too long.
fn measure(world: &mut World, case: &'static Case) -> Result<Option<Vec<String>>, Error> {
    let attacker = world.next_attacker();
    let floods = Floods::start(world)?;
    let ((snapshots, in_time), times) = attack_during(world, case, &attacker, || {
        thread::sleep(LEAD);
        let mut snapshots = vec![world.daemon.snapshot()];
        for _ in 0..WINDOWS {
            thread::sleep(WINDOW);
            snapshots.push(world.daemon.snapshot());
        }
        (snapshots, floods.started.elapsed().as_secs_f64() < SENDING)
    });
    let mut harm = floods.losses(world)?;
    let mut line = format!("contest, weights {:?}, {} ({times} times):", world.settings.weights, case.name);
    for (index, guest) in SENDERS.into_iter().enumerate().filter(|_| in_time) {
        let windows = snapshots.windows(2).map(|pair| kept(world, &pair[0], &pair[1], index));
        let kept = median(&windows.collect::<Vec<_>>()).unwrap_or(0.0);
        line += &format!(" {kept:.3}");
        if kept < MIN_KEPT {
            harm.push(format!("{} keeps only {kept:.3} of its share during {}", GUESTS[guest].name, case.name));
        }
    }
    if in_time {
        world.journal.write(line);
    }
    Ok((in_time || !harm.is_empty()).then_some(harm))
}

/// Floods of datagrams from both sending guests.
struct Floods {
    started: Instant,
    /// The snapshot of that time.
    before: Snapshot,
    /// Index of the sender, datagrams it sent before, sending job, receiving job.
    jobs: Vec<(usize, u64, Job, Job)>,
}

impl Floods {
    /// Starts both floods and waits until frames are sent.
    fn start(world: &World) -> Result<Floods, Error> {
        let mut receiving = Vec::new();
        for guest in SENDERS {
            let port = PORT + guest as u16;
            // Longer than the senders, since frames in queues and rings arrive later.
            let spec = ReceiveSpec { port, interval: 1.0, seconds: SENDING + 3.0 };
            let job = world.agent(RECEIVER).start_job(Command::UdpReceive(spec))?;
            job.started()?;
            let to = (GUESTS[RECEIVER].address, port).into();
            // The sender resolves the receiver's MAC address: until then, its kernel drops datagrams.
            let first = udp::SendSpec { to, size: 8, rate: Some(1e4), seconds: 0.05 };
            let Outcome::Sent(first) = world.agent(guest).run(Command::UdpSend(first))? else { panic!("sent") };
            receiving.push((guest, to, first.datagrams, job));
        }
        // After the ARP requests: their copies for vifs without a guest count as dropped.
        let (before, started) = (world.daemon.snapshot(), Instant::now());
        let start = |(guest, to, first, receiving): (usize, _, _, _)| {
            let spec = udp::SendSpec { to, size: 1472, rate: None, seconds: SENDING };
            let sending = world.agent(guest).start_job(Command::UdpSend(spec))?;
            Ok((guest, first, sending, receiving))
        };
        let jobs = receiving.into_iter().map(start).collect::<Result<_, Error>>()?;
        eventually(|| {
            let now = world.daemon.snapshot();
            let sends = |guest: usize| sent(&before, &now, guest) >= STARTED;
            if SENDERS.into_iter().all(sends) { Ok(()) } else { Err("the floods did not start".to_owned()) }
        });
        Ok(Floods { started, before, jobs })
    }

    /// Waits for the end of the floods. Returns descriptions of the losses.
    fn losses(self, world: &World) -> Result<Vec<String>, Error> {
        let mut losses = Vec::new();
        for (guest, first, sending, receiving) in self.jobs {
            let Outcome::Sent(Sent { datagrams, .. }) = sending.wait()? else { panic!("sent") };
            let Outcome::Received(Received { sources, .. }) = receiving.wait()? else { panic!("received") };
            let received: u64 = sources.iter().map(|source| source.datagrams).sum();
            let (sent, name) = (first + datagrams, GUESTS[guest].name);
            if received != sent {
                losses.push(format!("{received} of {sent} datagrams of {name} arrived"));
            }
        }
        let after = world.daemon.snapshot();
        for guest in SENDERS.into_iter().chain([RECEIVER]) {
            let [had, has] = [&self.before, &after].map(|snapshot| &vif(snapshot, GUESTS[guest].name).drops);
            if had != has {
                losses.push(format!("the drops of {} changed from {had:?} to {has:?}", GUESTS[guest].name));
            }
        }
        Ok(losses)
    }
}

/// Bytes that a guest sent between two snapshots.
fn sent(before: &Snapshot, after: &Snapshot, guest: usize) -> u64 {
    let [before, after] = [before, after].map(|snapshot| vif(snapshot, GUESTS[guest].name).sent_bytes);
    after - before
}

/// The fraction of its share that a sending guest got between two snapshots.
fn kept(world: &World, before: &Snapshot, after: &Snapshot, index: usize) -> f64 {
    let carried = (uplink(after).received_bytes - uplink(before).received_bytes) as f64;
    let weights = &world.settings.weights;
    let [all, weight, attacker] = [weights.iter().sum(), weights[index], WEIGHT].map(f64::from);
    let sent = |guest| sent(before, after, guest) as f64;
    let honest: f64 = SENDERS.map(sent).iter().sum();
    // The two share what the attacker does not use, and the attacker may use no more than its weight allows.
    let due = (honest * weight / all).max(carried * weight / (all + attacker));
    sent(SENDERS[index]) / due
}

fn uplink(snapshot: &Snapshot) -> &PortState {
    let link = snapshot.links.iter().find(|link| link.name == "near").expect("a link of the policy");
    link.uplink.as_ref().expect("the link has a wire")
}
