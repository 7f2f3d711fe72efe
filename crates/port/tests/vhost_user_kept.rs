//! A backend that restarts keeps its frontends' connections: the next one goes on where the last one ended, whether that was
//! stopped or killed, and the frontend sends nothing again.

mod frontend;

use fairlane_core::packet::Offload;
use fairlane_port::keeper::Keeper;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Control, Status};
use frontend::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// A backend with a keeper, and what its next process needs.
struct Service {
    _dir: TempDir,
    path: PathBuf,
    queues: u16,
    keeper: Arc<Keeper>,
    backend: Option<Backend>,
}

/// Something that a frontend sends.
type Step<'a> = Box<dyn Fn(&Frontend) + 'a>;

/// How a process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Stopped,
    Killed,
}

impl Service {
    fn start(queues: u16) -> Service {
        let (dir, path) = place();
        let keeper = Arc::new(Keeper::new().unwrap());
        let mut service = Service { _dir: dir, path, queues, keeper, backend: None };
        service.begin();
        service
    }

    /// A service with a frontend whose device is up.
    fn connected(features: u64) -> (Service, Frontend) {
        let mut service = Service::start(1);
        let frontend = Frontend::connect(&service.path, 8);
        frontend.set_up(features, 2);
        service.backend().until_up();
        (service, frontend)
    }

    fn backend(&mut self) -> &mut Backend {
        self.backend.as_mut().expect("it runs")
    }

    fn begin(&mut self) {
        let kept = self.keeper.take();
        let port = VhostUser::listen("test", &self.path, self.queues).unwrap().with_packed_rings();
        self.backend = Some(Backend::new(port.kept_by(self.keeper.clone(), kept)));
    }

    fn end(&mut self, end: End) {
        match (end, self.backend.take()) {
            (End::Stopped, backend) => drop(backend),
            (End::Killed, backend) => {
                // Its destructors do not run. The next process finds a socket that nobody listens at.
                std::mem::forget(backend);
                std::fs::remove_file(&self.path).unwrap();
            }
        }
    }

    fn restart(&mut self, end: End) {
        self.end(end);
        self.begin();
    }
}

/// Checks that the backend has not closed the connection, nor sent anything.
#[track_caller]
fn assert_undisturbed(frontend: &Frontend) {
    frontend.stream.set_nonblocking(true).unwrap();
    let error = (&frontend.stream).read(&mut [0]).expect_err("the frontend notices");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    frontend.stream.set_nonblocking(false).unwrap();
}

/// Checks that the backend has closed the connection, and serves the next one.
#[track_caller]
fn assert_left(service: &mut Service, frontend: Frontend) {
    assert_eq!((&frontend.stream).read(&mut [0]).expect("the connection ends"), 0);
    let path = service.path.clone();
    works_again(PLAIN, &path, service.backend());
}

/// Frames pass in both directions.
#[track_caller]
fn assert_serves(backend: &mut Backend, frontend: &mut Frontend, seed: u8) {
    let index = u16::from(seed) % frontend.size;
    let (sent, put) = (frame(seed, 300), frame(seed.wrapping_add(1), 400));
    frontend.transmit(index, NO_HEADER, &sent);
    assert_eq!(backend.take(), [(sent, Offload::default())]);
    frontend.post_buffer(index, 2048);
    assert_eq!(backend.put(&put, Offload::default()).accepted, 1);
    assert_eq!(frontend.received_buffer(index.into(), 412)[HEADER..], put);
    assert_eq!(frontend.completed(0).len(), 1);
    assert_eq!(frontend.completed(1).len(), 1);
}

#[test]
fn frames_pass_before_during_and_after_a_restart() {
    for end in [End::Stopped, End::Killed] {
        for features in [RICH, RICH | F_EVENT_IDX, RICH | F_PACKED | F_IN_ORDER] {
            let (mut service, mut frontend) = Service::connected(features);
            // The rings wrap.
            for round in 0..10 {
                assert_serves(service.backend(), &mut frontend, 3 * round);
                service.end(end);
                let waiting = frame(3 * round + 2, 500);
                let index = u16::from(3 * round + 1) % 8;
                frontend.transmit(index, NO_HEADER, &waiting);
                service.begin();
                assert_eq!(service.backend().port.status(), Status::Up, "{end:?} {features:#x}");
                assert_eq!(service.backend().take(), [(waiting, Offload::default())], "{end:?} {features:#x}");
                assert_eq!(frontend.completed(1).len(), 1);
                assert_undisturbed(&frontend);
            }
        }
    }
}

/// A successor takes over, serves or does not, and ends; the former process goes on. No frame is lost, and none passes twice.
#[test]
fn a_process_that_let_go_goes_on_after_its_successor_has_ended() {
    for features in [RICH, RICH | F_EVENT_IDX, RICH | F_PACKED | F_IN_ORDER] {
        let (mut service, mut frontend) = Service::connected(features);
        for round in 0..10 {
            assert_serves(service.backend(), &mut frontend, 5 * round);
            service.backend().port.let_go();
            let kept = service.keeper.take();
            let next = VhostUser::connect("next", &service.path, 1).unwrap().with_packed_rings();
            let mut next = Backend::new(next.kept_by(service.keeper.clone(), kept));
            assert_eq!(next.port.status(), Status::Up, "{features:#x}");
            if round % 2 == 0 {
                assert_serves(&mut next, &mut frontend, 5 * round + 2);
            }
            drop(next);
            let waiting = frame(5 * round + 4, 500);
            frontend.transmit(u16::from(5 * round + 3) % 8, NO_HEADER, &waiting);
            service.backend().port.take_back();
            assert_eq!(service.backend().take(), [(waiting, Offload::default())], "{features:#x}");
            assert_eq!(frontend.completed(1).len(), 1);
            assert_undisturbed(&frontend);
        }
    }
}

#[test]
fn a_restart_after_any_message_changes_nothing() {
    let mut service = Service::start(2);
    let mut frontend = Frontend::connect(&service.path, 8);
    let log = log_file(LOG);
    let (log_call, error) = (EventFd::new().unwrap(), EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
    let (kick, call) = (&frontend.kicks, &frontend.calls);
    let mut steps: Vec<Step<'_>> = vec![
        Box::new(|frontend| frontend.send_longs(SET_OWNER, &[], &[])),
        // MQ, REPLY_ACK, CONFIGURE_MEM_SLOTS, LOG_SHMFD.
        Box::new(|frontend| frontend.send_longs(SET_PROTOCOL_FEATURES, &[1 | 1 << 1 | 1 << 3 | 1 << 15], &[])),
        Box::new(|frontend| frontend.send_longs(SET_FEATURES, &[RICH | 1 << 22 | F_LOG_ALL], &[])),
        Box::new(|frontend| frontend.share_memory()),
        Box::new(|frontend| {
            let other = log_file(1 << 20);
            frontend.send_longs(ADD_MEM_REG, &[0, GUEST << 1, 1 << 20, USER << 1, 0], &[other.as_raw_fd()]);
        }),
        Box::new(|frontend| frontend.send_longs(REM_MEM_REG, &[0, GUEST << 1, 1 << 20, USER << 1, 0], &[])),
        Box::new(|frontend| frontend.send_longs(SET_LOG_BASE, &[LOG, 0], &[log.as_raw_fd()])),
        Box::new(|frontend| frontend.send_longs(SET_LOG_FD, &[], &[log_call.as_raw_fd()])),
    ];
    for queue in 0..4u32 {
        let (kick, call) = (kick[queue as usize].as_raw_fd(), call[queue as usize].as_raw_fd());
        let error = error.as_raw_fd();
        steps.push(Box::new(move |frontend| frontend.send_words(SET_VRING_NUM, &[queue, 8])));
        steps.push(Box::new(move |frontend| frontend.place_ring(queue, Some(GUEST + ring(queue)[2]))));
        steps.push(Box::new(move |frontend| frontend.send_words(SET_VRING_BASE, &[queue, 0])));
        steps.push(Box::new(move |frontend| frontend.send_longs(SET_VRING_ERR, &[queue.into()], &[error])));
        steps.push(Box::new(move |frontend| frontend.send_longs(SET_VRING_CALL, &[queue.into()], &[call])));
        steps.push(Box::new(move |frontend| frontend.send_longs(SET_VRING_KICK, &[queue.into()], &[kick])));
        steps.push(Box::new(move |frontend| frontend.send_words(SET_VRING_ENABLE, &[queue, 1])));
    }
    service.backend().settle();
    for (number, step) in steps.iter().enumerate() {
        let end = if number % 2 == 0 { End::Stopped } else { End::Killed };
        service.restart(end);
        step(&frontend);
        service.backend().settle();
    }
    drop(steps);
    service.restart(End::Killed);
    let mut reply = [0; 12];
    frontend.stream.read_exact(&mut reply).expect("the reply to SET_LOG_BASE");
    frontend.stream.read_exact(&mut reply[..8]).expect("its payload");
    assert_undisturbed(&frontend);
    assert_serves(service.backend(), &mut frontend, 0);
    // What the device wrote is in the log, whose descriptor it notifies.
    let mut bits = vec![0; LOG as usize];
    std::os::unix::fs::FileExt::read_exact_at(&log, &mut bits, 0).unwrap();
    assert!(bits.iter().any(|byte| *byte != 0), "nothing is in the log");
    assert!(log_call.read().unwrap() > 0);
    // A broken rule is told by the error descriptor.
    frontend.set_available(1, 1000);
    assert!(service.backend().take().is_empty());
    assert!(error.read().unwrap() > 0);
}

#[test]
fn a_ring_that_was_stopped_stays_stopped() {
    let (mut service, mut frontend) = Service::connected(PLAIN);
    assert_serves(service.backend(), &mut frontend, 0);
    frontend.send_words(GET_VRING_BASE, &[1, 0]);
    service.backend().settle();
    assert_eq!(frontend.reply()[4..], 1u32.to_ne_bytes());
    service.restart(End::Killed);
    frontend.transmit(1, NO_HEADER, &frame(1, 100));
    assert!(service.backend().take().is_empty());
    frontend.send_words(GET_VRING_BASE, &[1, 0]);
    service.backend().settle();
    assert_eq!(frontend.reply()[4..], 1u32.to_ne_bytes());
    frontend.send_longs(SET_VRING_KICK, &[1], &[frontend.kicks[1].as_raw_fd()]);
    service.backend().settle();
    assert_eq!(service.backend().take().len(), 1);
}

#[test]
fn a_frontend_that_left_meanwhile_is_gone() {
    let (mut service, frontend) = Service::connected(PLAIN);
    service.end(End::Stopped);
    drop(frontend);
    service.begin();
    service.backend().settle();
    assert_eq!(service.backend().port.status(), Status::Waiting);
    let path = service.path.clone();
    works_again(PLAIN, &path, service.backend());
}

#[test]
fn messages_sent_meanwhile_are_answered() {
    let (mut service, mut frontend) = Service::connected(PLAIN);
    service.end(End::Killed);
    frontend.send_longs(GET_QUEUE_NUM, &[], &[]);
    service.begin();
    service.backend().settle();
    assert_eq!(frontend.reply_long(), 1);
}

#[test]
fn what_the_next_process_cannot_serve_it_leaves() {
    // Half a message arrived.
    let (mut service, frontend) = Service::connected(PLAIN);
    frontend.send_raw(&GET_FEATURES.to_ne_bytes(), &[]);
    service.backend().settle();
    service.restart(End::Stopped);
    assert_left(&mut service, frontend);

    // The device has fewer queues now.
    let mut service = Service::start(2);
    let frontend = Frontend::connect(&service.path, 8);
    frontend.set_up(PLAIN, 4);
    service.backend().until_up();
    service.end(End::Stopped);
    service.queues = 1;
    service.begin();
    assert_left(&mut service, frontend);

    // It has another socket.
    let (mut service, frontend) = Service::connected(PLAIN);
    service.end(End::Stopped);
    service.path.set_file_name("other.sock");
    service.begin();
    assert_left(&mut service, frontend);

    // The memory was truncated.
    let (mut service, frontend) = Service::connected(PLAIN);
    service.end(End::Stopped);
    frontend.memory.set_len(4096).unwrap();
    service.begin();
    assert_left(&mut service, frontend);

    // The driver broke a rule.
    let (mut service, mut frontend) = Service::connected(PLAIN);
    frontend.set_available(1, 1000);
    assert!(service.backend().take().is_empty());
    service.backend().assert_disabled("");
    service.restart(End::Stopped);
    assert_left(&mut service, frontend);
}
