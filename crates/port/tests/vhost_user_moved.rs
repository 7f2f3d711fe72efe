//! Migration of a guest: every page that the device writes is in the frontend's log, and the guest is announced at its
//! destination.

mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::time::Nanos;
use fairlane_port::{Control, Sink, Source, Status, Wanted};
use frontend::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

const PAGE: u64 = 4096;

/// Entries of the rings: their buffers, 8 KiB apart, are in the memory that is compared.
const SIZE: u16 = 16;

/// The parts of the guest's memory that are compared: rings, transmit and receive buffers.
const PARTS: [u64; 3] = [0, BUFFERS, BUFFERS + (1 << 20)];
const PART: usize = 0x20000;

fn connected(features: u64) -> (TempDir, Backend, Frontend) {
    let (dir, _, backend, frontend) = frontend::connected(features, SIZE);
    (dir, backend, frontend)
}

/// Pages of the guest's memory, counted from its start, whose bits are set in the log at `offset` in a file.
fn marked(log: &File, offset: u64) -> BTreeSet<u64> {
    let mut bytes = vec![0; LOG as usize];
    log.read_exact_at(&mut bytes, offset).unwrap();
    let set = (0..LOG * 8).filter(|page| bytes[*page as usize / 8] & 1 << (page % 8) != 0);
    set.map(|page| page.checked_sub(GUEST / PAGE).expect("no page below the guest's memory")).collect()
}

/// Pages of `len` bytes at `at`.
fn pages(at: u64, len: u64) -> impl Iterator<Item = u64> {
    at / PAGE..(at + len).div_ceil(PAGE)
}

fn contents(frontend: &Frontend) -> Vec<Vec<u8>> {
    PARTS.map(|part| frontend.read(part, PART)).to_vec()
}

/// Pages whose contents changed.
fn changed(before: &[Vec<u8>], frontend: &Frontend) -> BTreeSet<u64> {
    let after = contents(frontend);
    let in_part = |part: usize| {
        let pairs = before[part].chunks(PAGE as usize).zip(after[part].chunks(PAGE as usize)).enumerate();
        pairs.filter(|(_, (a, b))| a != b).map(move |(page, _)| PARTS[part] / PAGE + page as u64).collect::<Vec<_>>()
    };
    (0..PARTS.len()).flat_map(in_part).collect()
}

/// An action of the device, or on it.
#[derive(Clone, Debug)]
enum Step {
    /// The guest sends frames of these lengths, and they are consumed.
    Transmit(Vec<usize>),
    /// The guest posts buffers of this length.
    Post(u16, u32),
    /// The guest receives a frame, segmented to this size.
    Put(usize, Option<u16>),
    EnableNotifications,
    DisableNotifications,
    /// A ring is stopped, and started again.
    Restart(u32),
    /// The frontend has copied the marked pages.
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(60..1500usize, 1..5).prop_map(Step::Transmit),
        (1..6u16, 100..8192u32).prop_map(|(buffers, len)| Step::Post(buffers, len)),
        (60..20_000usize).prop_map(|len| Step::Put(len, None)),
        (100..6000usize, 500..1448u16).prop_map(|(len, size)| Step::Put(len, Some(size))),
        Just(Step::EnableNotifications),
        Just(Step::DisableNotifications),
        (0..2u32).prop_map(Step::Restart),
        Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After each step, every page that changed is marked, and only pages that the device may have written to are.
    #[test]
    fn every_written_page_is_in_the_log(
        steps in prop::collection::vec(step(), 1..25),
        event_idx in any::<bool>(),
        offloads in any::<bool>(),
        packed in any::<bool>(),
        offset in 0..9u64,
    ) {
        let wanted = if offloads { RICH } else { PLAIN | F_MRG_RXBUF };
        let features = wanted | if event_idx { F_EVENT_IDX } else { 0 } | if packed { F_PACKED } else { 0 };
        let (_dir, mut backend, mut frontend) = connected(features);
        let log = log_file(offset + LOG);
        frontend.log_all(features, 2, &log, offset);
        backend.settle();
        let (mut sent, mut posted, mut free) = (0, 0, SIZE);
        // Where a receive buffer's bytes may have been written: in all posted buffers.
        let mut writable = BTreeSet::new();
        for step in steps {
            let mut take = false;
            match &step {
                Step::Transmit(lens) => {
                    for len in lens {
                        frontend.transmit(sent % SIZE, NO_HEADER, &frame(1, *len));
                        sent += 1;
                    }
                    take = true;
                }
                Step::Post(buffers, len) => {
                    for _ in 0..(*buffers).min(free) {
                        frontend.post_buffer(posted % SIZE, *len);
                        writable.extend(pages(PARTS[2] + 0x2000 * u64::from(posted % SIZE), (*len).into()));
                        posted += 1;
                        free -= 1;
                    }
                }
                Step::Clear => log.write_all_at(&vec![0; LOG as usize], offset).unwrap(),
                _ => {}
            }
            let (before, known) = (contents(&frontend), marked(&log, offset));
            match step {
                Step::Put(len, None) => {
                    backend.put(&frame(7, len), Offload::default());
                }
                Step::Put(len, Some(size)) => {
                    backend.put(&tcp_frame(len), tcp_offload(Some(size)));
                }
                Step::EnableNotifications => {
                    backend.port.enable_notifications(Wanted { frames: true, room: true });
                }
                Step::DisableNotifications => backend.port.disable_notifications(),
                Step::Restart(queue) => {
                    frontend.send_words(GET_VRING_BASE, &[queue, 0]);
                    frontend.send_longs(SET_VRING_KICK, &[queue.into()], &[frontend.kicks[queue as usize].as_raw_fd()]);
                    backend.settle();
                }
                _ => {}
            }
            if take {
                backend.take();
            }
            prop_assert_eq!(backend.port.status(), Status::Up);
            let (changed, marked) = (changed(&before, &frontend), marked(&log, offset));
            prop_assert!(changed.is_subset(&marked), "{changed:?} were written, and {marked:?} are marked");
            let rings = (0..2).flat_map(|queue| pages(ring(queue)[2], 6 + 8 * u64::from(SIZE)));
            let rings = rings.chain((0..2).filter(|_| packed).flat_map(|queue| pages(ring(queue)[0], 1)));
            let may: BTreeSet<u64> = known.into_iter().chain(rings).chain(writable.iter().copied()).collect();
            prop_assert!(marked.is_subset(&may), "{marked:?} are marked, and only {may:?} can have been written");
            free += frontend.completed(0).len() as u16;
        }
    }
}

#[test]
fn exactly_the_written_pages_are_marked() {
    let (_dir, mut backend, mut frontend) = connected(RICH);
    let log = log_file(LOG);
    frontend.log_all(RICH, 2, &log, 0);
    backend.settle();
    log.write_all_at(&vec![0; LOG as usize], 0).unwrap();
    let buffer = BUFFERS + (1 << 20);
    // The second buffer is two pages long, and the frame ends in the first.
    frontend.post_buffer(0, 2048);
    frontend.post_buffer(1, 0x2000);
    assert_eq!(backend.put(&frame(0, 4000), Offload::default()).refusal, None);
    let used = |queue: u32| ring(queue)[2] / PAGE;
    assert_eq!(marked(&log, 0), BTreeSet::from([used(0), buffer / PAGE, buffer / PAGE + 2]));
    frontend.transmit(0, NO_HEADER, &frame(0, 700));
    backend.take();
    assert_eq!(marked(&log, 0), BTreeSet::from([used(0), used(1), buffer / PAGE, buffer / PAGE + 2]));
}

/// "this value might be outside the legal guest physical address range": here below the guest's memory, with flags and
/// index on one page, the first half of the elements on the next, and their second half on the page after it. The burst
/// begins in the second half and wraps to the first.
#[test]
fn a_used_ring_is_logged_at_the_frontends_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vif.sock");
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, 1024);
    frontend.set_available(1, 1022);
    frontend.write(ring(1)[2] + 2, &1022u16.to_le_bytes());
    frontend.set_up(RICH, 2);
    let log = log_file(LOG);
    frontend.log_all(RICH, 2, &log, 0);
    frontend.place_ring(1, Some(5 * PAGE - 4));
    backend.until_up();
    for (frames, pages) in [(4u16, 1 << 4 | 1 << 5 | 1 << 6), (1, 1 << 4 | 1 << 5)] {
        log.write_all_at(&vec![0; LOG as usize], 0).unwrap();
        (0..frames).for_each(|index| frontend.transmit(index, NO_HEADER, &frame(0, 700)));
        assert_eq!(backend.take().len(), usize::from(frames));
        let mut bytes = vec![0; LOG as usize];
        log.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[0], pages);
        assert!(bytes[1..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn nothing_is_logged_before_or_after_a_migration() {
    let (_dir, mut backend, mut frontend) = connected(RICH);
    let log = log_file(LOG);
    let pass = |backend: &mut Backend, frontend: &mut Frontend, index: u16| {
        frontend.post_buffer(index, 2048);
        assert_eq!(backend.put(&frame(0, 1000), Offload::default()).refusal, None);
        frontend.transmit(index, NO_HEADER, &frame(0, 100));
        assert_eq!(backend.take().len(), 1);
    };
    frontend.send_longs(SET_LOG_BASE, &[LOG, 0], &[log.as_raw_fd()]);
    backend.settle();
    assert_eq!(frontend.reply_long(), 0, "there is a reply");
    pass(&mut backend, &mut frontend, 0);
    assert_eq!(marked(&log, 0), BTreeSet::new());
    frontend.log_all(RICH, 2, &log, 0);
    backend.settle();
    pass(&mut backend, &mut frontend, 1);
    assert_eq!(marked(&log, 0).len(), 3);
    frontend.send_longs(SET_FEATURES, &[RICH], &[]);
    (0..2).for_each(|queue| frontend.place_ring(queue, None));
    backend.settle();
    log.write_all_at(&vec![0; LOG as usize], 0).unwrap();
    pass(&mut backend, &mut frontend, 2);
    assert_eq!(marked(&log, 0), BTreeSet::new());
}

/// QEMU sends the log's address after it has set up and enabled rings, if the guest's driver starts during a migration.
#[test]
fn a_device_that_must_log_waits_for_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vif.sock");
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, SIZE);
    frontend.set_up(RICH | F_LOG_ALL, 2);
    frontend.post_buffer(0, 2048);
    backend.settle();
    assert_eq!(backend.port.status(), Status::Waiting);
    let log = log_file(LOG);
    frontend.send_longs(SET_LOG_BASE, &[LOG, 0], &[log.as_raw_fd()]);
    backend.until_up();
    assert_eq!(backend.put(&frame(0, 1000), Offload::default()).refusal, None);
    assert_eq!(marked(&log, 0), BTreeSet::from([(BUFFERS + (1 << 20)) / PAGE]), "the used ring is not logged");
}

#[test]
fn a_frontend_is_notified_of_changes_in_its_log() {
    let (_dir, mut backend, mut frontend) = connected(RICH);
    let log_event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
    frontend.send_longs(SET_LOG_FD, &[], &[log_event.as_raw_fd()]);
    frontend.log_all(RICH, 2, &log_file(LOG), 0);
    backend.settle();
    backend.port.flush(Nanos(0));
    // The rings wrote their flags when they started.
    assert_eq!(log_event.read(), Ok(1));
    backend.port.flush(Nanos(0));
    assert!(log_event.read().is_err(), "nothing was written since then");
    frontend.transmit(0, NO_HEADER, &frame(0, 100));
    backend.take();
    assert_eq!(log_event.read(), Ok(1));
}

#[test]
fn a_migrated_guest_is_announced_once_before_its_own_frames() {
    let (_dir, mut backend, mut frontend) = connected(RICH);
    let mac = [2, 0, 0, 0, 0, 7];
    frontend.transmit(0, NO_HEADER, &frame(3, 100));
    frontend.send(SEND_RARP, 1, &[mac.to_vec(), vec![0, 0]].concat(), &[]);
    backend.settle();
    assert!(backend.port.waiting(Nanos(0)) && backend.port.enable_notifications(Wanted { frames: true, room: false }));
    // RFC 903: operation 3, sender and target hardware address are the guest's, no protocol addresses.
    let mut rarp = [vec![0xff; 6], mac.to_vec(), vec![0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]].concat();
    rarp.extend([mac.to_vec(), vec![0; 4], mac.to_vec(), vec![0; 4]].concat());
    rarp.resize(60, 0);
    for _ in 0..2 {
        let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
        assert_eq!(batch.frames().map(|frame| bytes(&frame)).collect::<Vec<_>>(), [rarp.clone()]);
        backend.port.consume(0);
    }
    assert_eq!(backend.take(), [(rarp, Offload::default())]);
    assert_eq!(backend.take(), [(frame(3, 100), Offload::default())]);
    assert_eq!((backend.take().len(), backend.port.waiting(Nanos(0))), (0, false));
}

/// A driver that sees GUEST_ANNOUNCE (21) fails without a control queue, which frontends that negotiate RARP have.
#[test]
fn guest_announce_is_offered_where_guests_migrate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vif.sock");
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, SIZE);
    for (protocol, offered) in [(1 << 3, false), (1 << 2 | 1 << 3, true)] {
        frontend.send_longs(SET_PROTOCOL_FEATURES, &[protocol], &[]);
        frontend.send(GET_FEATURES, 1, &[], &[]);
        backend.settle();
        assert_eq!(frontend.reply_long() & 1 << 21 != 0, offered);
    }
    frontend.send_longs(SET_FEATURES, &[RICH | 1 << 21], &[]);
    backend.settle();
    assert_eq!(backend.port.status(), Status::Waiting);
}

/// Senders thus wait for a paused guest instead of giving it up.
#[test]
fn a_stopped_guest_receives_nothing() {
    let (_dir, mut backend, frontend) = connected(RICH | F_EVENT_IDX);
    assert_eq!(backend.port.ring().waiting, 0);
    (0..2).for_each(|queue| frontend.send_words(GET_VRING_BASE, &[queue, 0]));
    backend.settle();
    assert_eq!((backend.port.ring().waiting, backend.port.status()), (1, Status::Waiting));
    drop(frontend);
    backend.settle();
    assert_eq!(backend.port.ring().waiting, 0, "there is no guest");
}
