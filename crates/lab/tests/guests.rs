//! Real guests without a network card.

mod alone;
mod support;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{self, Stdio},
    thread,
    time::{Duration, Instant},
};

use alone::{boot, spec};
use fairlane_lab::{Command, Error, Event, Guest, GuestSpec, Kind, Outcome};
use fairlane_load::{ReceiveSpec, Sample, tcp, udp};
use libtest_mimic::Arguments;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid},
};
use support::guest_test;

/// Set for the copy of this program that boots a guest and is then killed.
const VICTIM: &str = "FAIRLANE_TEST_VICTIM";

fn main() -> process::ExitCode {
    if env::var_os(VICTIM).is_some() {
        run_victim();
    }
    let tests = vec![
        guest_test("uml_counts_datagrams_on_its_loopback", || datagrams(Kind::Uml)),
        guest_test("uml_counts_streams_on_its_loopback", streams),
        guest_test("uml_stops_and_leaves_no_process", stopped),
        guest_test("uml_dropped_leaves_no_process", dropped),
        guest_test("uml_leaves_no_process_when_its_host_is_killed", host_killed),
        guest_test("uml_that_does_not_come_up_shows_its_console", too_small),
        guest_test("uml_that_ends_while_a_job_runs_is_gone", gone),
        guest_test("qemu_counts_datagrams_on_its_loopback", || datagrams(Kind::Qemu)),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn boot_alone(kind: Kind, name: &str) -> Result<Guest, Error> {
    boot(&spec(kind, name))
}

fn datagrams(kind: Kind) -> Result<(), Error> {
    let guest = boot_alone(kind, if kind == Kind::Uml { "uml-datagrams" } else { "qemu-datagrams" })?;
    let Outcome::Hello { kernel, .. } = guest.agent().run(Command::Hello)? else { panic!("hello") };
    assert!(kernel.starts_with(|c: char| c.is_ascii_digit()), "{kernel}");

    let receiver =
        guest.agent().start_job(Command::UdpReceive(ReceiveSpec { port: 5001, interval: 0.1, seconds: 1.5 }))?;
    receiver.started()?;
    let to = "127.0.0.1:5001".parse().unwrap();
    let run = Command::UdpSend(udp::SendSpec { to, size: 1000, rate: Some(5e6), seconds: 1.0 });
    let Outcome::Sent(sent) = guest.agent().run(run)? else { panic!("sent") };
    let mut samples: Vec<Sample> = Vec::new();
    let received = loop {
        match receiver.next()?.1 {
            Event::Sample(sample) => samples.push(sample),
            Event::Done(Outcome::Received(received)) => break received,
            event => panic!("{event:?}"),
        }
    };
    let [total] = &received.sources[..] else { panic!("{received:?}") };
    assert!(sent.datagrams > 0);
    assert_eq!((total.datagrams, total.bytes, total.lost()), (sent.datagrams, sent.bytes, 0));
    assert_eq!(samples.iter().map(|sample| sample.bytes).sum::<u64>(), sent.bytes);
    assert!(samples.iter().all(|sample| sample.source == total.source));
    let Outcome::Counters(counters) = guest.agent().run(Command::Counters)? else { panic!("counters") };
    let lo = counters.interfaces.iter().find(|interface| interface.name == "lo").expect("lo");
    assert!(lo.received_frames >= sent.datagrams);
    assert_eq!(counters.socket_overflows, 0);
    guest.stop()
}

fn streams() -> Result<(), Error> {
    let guest = boot_alone(Kind::Uml, "uml-streams")?;
    let receiver =
        guest.agent().start_job(Command::TcpReceive(ReceiveSpec { port: 5001, interval: 0.1, seconds: 2.0 }))?;
    receiver.started()?;
    let to = "127.0.0.1:5001".parse().unwrap();
    let run = Command::TcpSend(tcp::SendSpec { to, connections: 2, seconds: 0.5 });
    let Outcome::Sent(sent) = guest.agent().run(run)? else { panic!("sent") };
    let Outcome::Received(received) = receiver.wait()? else { panic!("received") };
    assert_eq!(received.sources.len(), 2);
    assert_eq!(received.sources.iter().map(|total| total.bytes).sum::<u64>(), sent.bytes);

    let refused = guest.agent().run(Command::TcpSend(tcp::SendSpec { to, connections: 1, seconds: 0.5 }));
    assert!(matches!(refused, Err(Error::Failed { ref reason, .. }) if reason.contains("127.0.0.1:5001")));
    guest.stop()
}

fn stopped() -> Result<(), Error> {
    let guest = boot_alone(Kind::Uml, "uml-stopped")?;
    let name = guest.agent().name().to_owned();
    assert!(processes_of(&name).len() > 1);
    guest.stop()?;
    assert_none_left(&name);
    Ok(())
}

fn dropped() -> Result<(), Error> {
    let guest = boot_alone(Kind::Uml, "uml-dropped")?;
    let name = guest.agent().name().to_owned();
    drop(guest);
    assert_none_left(&name);
    Ok(())
}

fn host_killed() -> Result<(), Error> {
    // Boots one here first, so that this test is skipped like the others if something is missing.
    boot_alone(Kind::Uml, "uml-trial")?;
    let program = env::current_exe().unwrap();
    let mut victim = process::Command::new(program).env(VICTIM, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let name = line.trim();
    assert!(processes_of(name).len() > 1);
    kill(Pid::from_raw(victim.id() as i32), Signal::SIGKILL).unwrap();
    victim.wait().unwrap();
    assert_none_left(name);
    Ok(())
}

/// Boots a guest, prints its name, and waits to be killed.
fn run_victim() -> ! {
    let guest = boot_alone(Kind::Uml, "uml-victim").unwrap();
    println!("{}", guest.agent().name());
    loop {
        thread::park();
    }
}

fn too_small() -> Result<(), Error> {
    let spec = GuestSpec { memory_mib: 6, ..spec(Kind::Uml, "uml-small") };
    match Guest::boot(&spec) {
        Err(Error::Boot { guest, image, console, .. }) => {
            assert_eq!(guest, spec.name);
            assert!(image.contains("initramfs-"), "{image}");
            assert!(console.lines().count() > 3, "{console}");
        }
        Err(missing @ Error::Missing(_)) => return Err(missing),
        other => panic!("a guest of 6 MiB: {:?}", other.map(|guest| guest.agent().name().to_owned())),
    }
    fs::remove_file(&spec.log).unwrap();
    Ok(())
}

fn gone() -> Result<(), Error> {
    let guest = boot_alone(Kind::Uml, "uml-gone")?;
    let job =
        guest.agent().start_job(Command::UdpReceive(ReceiveSpec { port: 5001, interval: 0.1, seconds: 600.0 }))?;
    job.started()?;
    // All its processes but the keeper, which is in another group.
    let kernel = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("linux.uml"));
    let member = processes_of(guest.agent().name()).into_iter().find(kernel).expect("a process of the guest's kernel");
    killpg(getpgid(Some(Pid::from_raw(member))).unwrap(), Signal::SIGKILL).unwrap();
    assert!(matches!(job.wait(), Err(Error::Gone { guest: name, .. }) if name == guest.agent().name()));
    assert!(matches!(guest.agent().run(Command::Hello), Err(Error::Gone { .. })));
    Ok(())
}

/// Processes with the guest's name on their command line: its keeper and each process of the guest. Zombies have no command
/// line.
fn processes_of(guest: &str) -> Vec<i32> {
    let has_name = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("fairlane.host={guest}"))
    };
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(has_name).collect()
}

/// Fails if a guest still has processes after ten seconds.
fn assert_none_left(guest: &str) {
    let start = Instant::now();
    while !processes_of(guest).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(10), "processes of {guest} are left behind");
        thread::sleep(Duration::from_millis(20));
    }
}
