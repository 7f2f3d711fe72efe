//! A contest: two guests flood the link of a fixed rate while someone attacks. Each has its part of what the link carries, and loses no
//! datagram.

use crate::books::eventually;
use crate::daemon::vif;
use crate::deeds::{attacked, hostile_deed, weights};
use crate::hostile::deeds::Deed;
use crate::world::{PLACES, Settings, WEIGHT, World};
use fairlane_engine::snapshot::{PortState, Snapshot};
use fairlane_lab::{Command, Error, Job, Outcome};
use fairlane_load::{ReceiveSpec, Received, Sent, udp};
use fairlane_report::stats::median;
use rand::rngs::StdRng;
use std::thread;
use std::time::{Duration, Instant};

/// What a guest keeps of its share at least.
const KEPT: f64 = 0.95;

/// How long the attack lasts before shares are measured, how long one is measured, and how many are.
const LEAD: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_millis(300);
const WINDOWS: u32 = 4;

/// How long the two send, in seconds: longer than is measured.
const SENDING: f64 = 3.0;

/// Bytes that each has sent when its ring is full.
const BEGUN: u64 = 100_000;

/// How often one is held again whose measurement took longer than they sent, as this computer had other work.
const TRIES: u32 = 5;

/// The first of their ports.
const PORT: u16 = 5001;

/// Who contests, and who takes, as places.
const SENDERS: [usize; 2] = [0, 1];
const TAKER: usize = 2;

/// Holds one, and once more where someone seems to lose by it: a computer that gave its CPUs to others at the wrong moment looks the same.
///
/// # Errors
/// A guest that ended.
pub fn held(world: &mut World, random: &mut StdRng) -> Result<(), Error> {
    let weights = weights(random);
    world.reload(Settings { rate: 20, weights });
    let deed = hostile_deed(world, random);
    let harm = harm(world, deed)?;
    if !harm.is_empty() {
        world.diary.say(format_args!("once more: {harm:?}"));
        let harm = self::harm(world, deed)?;
        assert!(harm.is_empty(), "{harm:?}");
    }
    Ok(())
}

/// What the two suffer beside a deed, in words.
fn harm(world: &mut World, deed: &'static Deed) -> Result<Vec<String>, Error> {
    for _ in 0..TRIES {
        if let Some(harm) = measured(world, deed)? {
            return Ok(harm);
        }
        world.diary.say("too slow to measure");
    }
    Ok(Vec::new())
}

/// As [`harm`]; nothing where it took too long.
fn measured(world: &mut World, deed: &'static Deed) -> Result<Option<Vec<String>>, Error> {
    let attacker = world.next_attacker();
    let floods = Floods::begin(world)?;
    let ((snapshots, in_time), times) = attacked(world, deed, &attacker, || {
        thread::sleep(LEAD);
        let mut snapshots = vec![world.daemon.snapshot()];
        for _ in 0..WINDOWS {
            thread::sleep(WINDOW);
            snapshots.push(world.daemon.snapshot());
        }
        (snapshots, floods.begun.elapsed().as_secs_f64() < SENDING)
    });
    let mut harm = floods.losses(world)?;
    let mut words = format!("contest, weights {:?}, {} ({times} times):", world.settings.weights, deed.name);
    for (place, guest) in SENDERS.into_iter().enumerate().filter(|_| in_time) {
        let windows = snapshots.windows(2).map(|pair| kept(world, &pair[0], &pair[1], place));
        let kept = median(&windows.collect::<Vec<_>>()).unwrap_or(0.0);
        words += &format!(" {kept:.3}");
        if kept < KEPT {
            harm.push(format!("of its share {kept:.3} is left to {}, beside {}", PLACES[guest].name, deed.name));
        }
    }
    if in_time {
        world.diary.say(words);
    }
    Ok((in_time || !harm.is_empty()).then_some(harm))
}

/// Datagrams of the two who contest, as fast as they can.
struct Floods {
    begun: Instant,
    /// What the daemon showed then.
    before: Snapshot,
    /// Who sends, how many it sent before, that it does, and that it is received.
    jobs: Vec<(usize, u64, Job, Job)>,
}

impl Floods {
    /// Has both begin, and waits until they send.
    fn begin(world: &World) -> Result<Floods, Error> {
        let mut receiving = Vec::new();
        for guest in SENDERS {
            let port = PORT + guest as u16;
            // What is in queues and rings arrives after the senders' end.
            let order = ReceiveSpec { port, interval: 1.0, seconds: SENDING + 3.0 };
            let job = world.agent(TAKER).start_job(Command::UdpReceive(order))?;
            job.started()?;
            let to = (PLACES[TAKER].address, port).into();
            // It learns the other's MAC address: what is sent before that, its own kernel drops.
            let first = udp::SendSpec { to, size: 8, rate: Some(1e4), seconds: 0.05 };
            let Outcome::Sent(first) = world.agent(guest).run(Command::UdpSend(first))? else { panic!("sent") };
            receiving.push((guest, to, first.datagrams, job));
        }
        // Who was asked for its MAC address was asked of all, and copies for those that are not there are counted as dropped.
        let (before, begun) = (world.daemon.snapshot(), Instant::now());
        let begin = |(guest, to, first, receiving): (usize, _, _, _)| {
            let spec = udp::SendSpec { to, size: 1472, rate: None, seconds: SENDING };
            let sending = world.agent(guest).start_job(Command::UdpSend(spec))?;
            Ok((guest, first, sending, receiving))
        };
        let jobs = receiving.into_iter().map(begin).collect::<Result<_, Error>>()?;
        eventually(|| {
            let now = world.daemon.snapshot();
            let sends = |guest: usize| sent(&before, &now, guest) >= BEGUN;
            if SENDERS.into_iter().all(sends) { Ok(()) } else { Err("they do not send".to_owned()) }
        });
        Ok(Floods { begun, before, jobs })
    }

    /// Waits for their end. Answers what was lost, in words.
    fn losses(self, world: &World) -> Result<Vec<String>, Error> {
        let mut losses = Vec::new();
        for (guest, first, sending, receiving) in self.jobs {
            let Outcome::Sent(Sent { datagrams, .. }) = sending.wait()? else { panic!("sent") };
            let Outcome::Received(Received { sources, .. }) = receiving.wait()? else { panic!("received") };
            let came: u64 = sources.iter().map(|source| source.datagrams).sum();
            let (sent, name) = (first + datagrams, PLACES[guest].name);
            if came != sent {
                losses.push(format!("of {sent} datagrams of {name} came {came}"));
            }
        }
        let after = world.daemon.snapshot();
        for guest in SENDERS.into_iter().chain([TAKER]) {
            let [had, has] = [&self.before, &after].map(|snapshot| &vif(snapshot, PLACES[guest].name).drops);
            if had != has {
                losses.push(format!("{} had drops of {had:?}, and has {has:?}", PLACES[guest].name));
            }
        }
        Ok(losses)
    }
}

/// Bytes that a guest sent between two snapshots.
fn sent(before: &Snapshot, after: &Snapshot, guest: usize) -> u64 {
    let [before, after] = [before, after].map(|snapshot| vif(snapshot, PLACES[guest].name).sent_bytes);
    after - before
}

/// The part of its share that one of the two got between two snapshots.
fn kept(world: &World, before: &Snapshot, after: &Snapshot, place: usize) -> f64 {
    let carried = (uplink(after).received_bytes - uplink(before).received_bytes) as f64;
    let weights = &world.settings.weights;
    let [all, weight, attacker] = [weights.iter().sum(), weights[place], WEIGHT].map(f64::from);
    let sent = |guest| sent(before, after, guest) as f64;
    let honest: f64 = SENDERS.map(sent).iter().sum();
    // What the attacker leaves is theirs; and it leaves them as much as its weight says.
    let due = (honest * weight / all).max(carried * weight / (all + attacker));
    sent(SENDERS[place]) / due
}

fn uplink(snapshot: &Snapshot) -> &PortState {
    let link = snapshot.links.iter().find(|link| link.name == "near").expect("a link of the policy");
    link.uplink.as_ref().expect("it has a wire")
}
