//! A vhost-user frontend that breaks the rules: each case disables its own port, with the reason, and has no other
//! effect.
//!
//! The cases follow the security fixes of DPDK's vhost library: impossible chains and headers, indices that run away,
//! memory that is missing or vanishes, invalid messages.

mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::{Control, Sink, Source, Status, Wanted};
use frontend::*;
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use proptest::prelude::*;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

fn backend() -> (tempfile::TempDir, std::path::PathBuf, Backend) {
    let (dir, path) = place();
    let backend = Backend::listen(&path, 1);
    (dir, path, backend)
}

/// A chain on the transmit queue: descriptors 0, 1, ... as given.
fn chain(frontend: &mut Frontend, descriptors: &[(u64, u32, u16, u16)]) {
    for (index, &(address, len, flags, next)) in descriptors.iter().enumerate() {
        frontend.descriptor(1, index as u16, address, len, flags, next);
    }
    frontend.push(1, 0);
}

#[test]
fn an_available_index_too_far_ahead() {
    disabled_by(RICH, "the available index 9 is not within a ring's size", |frontend| frontend.set_available(1, 9));
}

#[test]
fn an_available_index_that_moves_back() {
    let (_dir, path, mut backend) = backend();
    let mut frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    backend.until_up();
    frontend.transmit(0, NO_HEADER, &frame(0, 100));
    frontend.transmit(1, NO_HEADER, &frame(0, 100));
    backend.take();
    frontend.set_available(1, 1);
    assert!(backend.take().is_empty());
    assert!(matches!(backend.port.status(), Status::Disabled(why) if why.contains("available index 1")));
}

#[test]
fn an_available_entry_out_of_the_table() {
    disabled_by(RICH, "an available entry names descriptor 8 of a ring of 8", |frontend| frontend.push(1, 8));
}

#[test]
fn a_next_out_of_the_table() {
    disabled_by(RICH, "a descriptor's next is 8 in a table of 8", |frontend| {
        chain(frontend, &[(BUFFERS, 100, NEXT, 8)]);
    });
}

#[test]
fn a_circular_chain() {
    disabled_by(RICH, "an endless chain of descriptors", |frontend| {
        chain(frontend, &[(BUFFERS, 100, NEXT, 1), (BUFFERS, 100, NEXT, 0)]);
    });
}

#[test]
fn a_circular_chain_without_bytes() {
    disabled_by(RICH, "a descriptor of 0 bytes", |frontend| chain(frontend, &[(BUFFERS, 0, NEXT, 0)]));
}

#[test]
fn a_buffer_outside_the_guest() {
    for address in [MEMORY, MEMORY - 50, 0u64.wrapping_sub(GUEST), u64::MAX - GUEST - 20] {
        disabled_by(RICH, "is not in shared memory", |frontend| chain(frontend, &[(address, 100, 0, 0)]));
    }
}

#[test]
fn a_writable_transmit_buffer() {
    disabled_by(RICH, "writable by the device", |frontend| chain(frontend, &[(BUFFERS, 100, WRITE, 0)]));
}

#[test]
fn a_read_only_receive_buffer() {
    disabled_by(RICH, "not writable by the device", |frontend| {
        frontend.descriptor(0, 0, BUFFERS, 2048, 0, 0);
        frontend.push(0, 0);
    });
}

#[test]
fn a_chain_shorter_than_the_header() {
    for len in [1, 11, 12] {
        disabled_by(RICH, "has no room for the packet header", |frontend| chain(frontend, &[(BUFFERS, len, 0, 0)]));
    }
}

#[test]
fn a_frame_longer_than_the_largest() {
    disabled_by(RICH, "a frame of more than 65557 bytes", |frontend| chain(frontend, &[(BUFFERS, 65570, 0, 0)]));
    disabled_by(RICH, "a frame of more than 65557 bytes", |frontend| {
        let most = MEMORY as u32;
        chain(frontend, &[(0, most, NEXT, 1), (0, most, NEXT, 2), (0, most, NEXT, 3), (0, most, 0, 0)]);
    });
}

#[test]
fn a_frame_in_too_many_segments() {
    disabled_by(RICH, "in more segments than any driver makes", |frontend| {
        let table: Vec<u8> = (0..2000).flat_map(|at| descriptor(GUEST + BUFFERS, 1, NEXT, at + 1)).collect();
        frontend.write(BUFFERS + 0x10000, &table);
        chain(frontend, &[(BUFFERS + 0x10000, 2000 * 16, INDIRECT, 0)]);
    });
}

#[test]
fn indirect_tables_of_impossible_form() {
    for (len, flags) in [(0, INDIRECT), (24, INDIRECT), (16, INDIRECT | NEXT), (16 * 32769, INDIRECT)] {
        disabled_by(RICH, "an indirect table of", |frontend| chain(frontend, &[(BUFFERS, len, flags, 0)]));
    }
    disabled_by(RICH, "neither nested nor followed", |frontend| {
        frontend.write(BUFFERS, &descriptor(GUEST + BUFFERS, 16, INDIRECT, 0));
        chain(frontend, &[(BUFFERS, 16, INDIRECT, 0)]);
    });
    disabled_by(RICH, "is not in shared memory", |frontend| chain(frontend, &[(MEMORY - 8, 16, INDIRECT, 0)]));
    disabled_by(RICH, "a descriptor's next is 2 in a table of 2", |frontend| {
        frontend.write(BUFFERS, &descriptor(GUEST + BUFFERS, 16, NEXT, 1));
        frontend.write(BUFFERS + 16, &descriptor(GUEST + BUFFERS, 16, NEXT, 2));
        chain(frontend, &[(BUFFERS, 32, INDIRECT, 0)]);
    });
}

#[test]
fn invalid_packet_headers() {
    // flags, gso type, header length, gso size, checksum start, checksum offset
    let tcp = tcp_frame(100);
    let header = |flags, gso, size: u16, start: u16, offset: u16| {
        let mut header = [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[4..6].copy_from_slice(&size.to_le_bytes());
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8..10].copy_from_slice(&offset.to_le_bytes());
        header
    };
    for (wrong, reason) in [
        (header(1, 0, 0, 153, 0), "it must be within the frame"),
        (header(1, 0, 0, 53, 0), "the protocol's checksum field"),
        (header(1, 0, 0, u16::MAX, u16::MAX), "it must be within the frame"),
        (header(1, 1, 0, 34, 16), "gso_size is 0"),
        (header(0, 1, 1448, 34, 16), "NEEDS_CSUM"),
        (header(1, 3, 1448, 34, 16), "gso_type is 3"),
        (header(1, 5, 1448, 34, 16), "gso_type is 5"),
        (header(1, 4, 1448, 34, 16), "it must be what gso_type requires"),
    ] {
        disabled_by(RICH, reason, |frontend| frontend.transmit(0, wrong, &tcp));
    }
}

#[test]
fn memory_truncated_in_use() {
    disabled_by(RICH, "truncated its guest's memory", |frontend| {
        frontend.transmit(0, NO_HEADER, &frame(0, 1000));
        frontend.memory.set_len(0).unwrap();
    });
}

/// No frame passes, so nothing is flushed: the check before the worker sleeps finds it.
#[test]
fn memory_truncated_while_idle() {
    let (_dir, path, mut backend) = backend();
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    backend.until_up();
    frontend.memory.set_len(0).unwrap();
    assert!(!backend.port.waiting(Nanos(0)));
    backend.port.enable_notifications(Wanted { frames: true, room: false });
    backend.assert_disabled("truncated its guest's memory");
    drop(frontend);
    works_again(RICH, &path, &mut backend);
}

/// Entries that were seen before have no descriptors any more: that is not the driver's fault.
#[test]
fn memory_truncated_while_frames_wait() {
    let (_dir, path, mut backend) = backend();
    let mut frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    backend.until_up();
    (0..2).for_each(|index| frontend.transmit(index, NO_HEADER, &frame(0, 100)));
    let one = Budget { bytes: u64::MAX, frames: 1 };
    assert_eq!(backend.port.offer(&mut backend.burst, one, Nanos(0)).len(), 1);
    backend.port.consume(1);
    frontend.memory.set_len(0).unwrap();
    assert!(backend.port.offer(&mut backend.burst, one, Nanos(0)).is_empty());
    backend.assert_disabled("truncated its guest's memory");
}

#[test]
fn rings_of_impossible_form() {
    for (num, at, reason) in [
        (3, [0, 0x8000, 0xc000], "a ring of 3 entries"),
        (0, [0, 0x8000, 0xc000], "a ring of 0 entries"),
        (8, [MEMORY - 64, 0x8000, 0xc000], "the descriptor table at"),
        (8, [0, MEMORY - 4, 0xc000], "the available ring at"),
        (8, [0, 0x8000, MEMORY - 8], "the used ring at"),
        (8, [8, 0x8000, 0xc000], "is not aligned"),
        (8, [0, 0x8001, 0xc000], "is not aligned"),
        (8, [0, 0x8000, 0xc002], "is not aligned"),
    ] {
        rejected(reason, |frontend| {
            frontend.send_words(SET_VRING_NUM, &[1, num]);
            let [descriptors, available, used] = at.map(|at| USER + at);
            frontend.send_longs(SET_VRING_ADDR, &[1, descriptors, used, available, 0], &[]);
            frontend.send_longs(SET_VRING_KICK, &[1], &[frontend.kicks[1].as_raw_fd()]);
            frontend.send_words(SET_VRING_ENABLE, &[1, 1]);
        });
    }
}

/// After features and memory are negotiated, sends the messages of `wrong`; the connection must end with `reason`, and
/// the next frontend be served.
#[track_caller]
fn rejected(reason: &str, wrong: impl FnOnce(&Frontend)) {
    let (_dir, path, mut backend) = backend();
    let frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 0);
    wrong(&frontend);
    let why = backend.until_disabled();
    assert!(why.contains(reason), "the reason is: {why}");
    works_again(RICH, &path, &mut backend);
}

#[test]
fn unknown_messages() {
    rejected("is not one that a frontend sends", |frontend| frontend.send(999, 1, &[], &[]));
    rejected("belongs to a feature that was not offered", |frontend| frontend.send(22, 1, &[0; 64], &[]));
    rejected("has flags", |frontend| frontend.send(GET_FEATURES, 2, &[], &[]));
    rejected("has flags", |frontend| frontend.send(GET_FEATURES, 5, &[], &[]));
    rejected("a message of 100000 bytes", |frontend| {
        let header: Vec<u8> = [1u32, 1, 100_000].iter().flat_map(|word| word.to_ne_bytes()).collect();
        frontend.send_raw(&header, &[]);
    });
}

#[test]
fn messages_too_short_for_their_request() {
    for request in
        [SET_FEATURES, SET_MEM_TABLE, SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_ENABLE, SET_VRING_KICK, ADD_MEM_REG]
    {
        let fd = std::fs::File::open("/dev/null").unwrap();
        let (_dir, path, mut backend) = backend();
        let frontend = Frontend::connect(&path, 8);
        frontend.send(request, 1, &[1, 0, 0], &[fd.as_raw_fd()]);
        let why = backend.until_disabled();
        assert!(why.contains("with 3 bytes; it needs"), "message {request}: {why}");
    }
}

#[test]
fn features_that_were_not_offered_or_are_missing() {
    rejected("that were not offered", |frontend| frontend.send_longs(SET_FEATURES, &[RICH | 1 << 17], &[]));
    rejected("VIRTIO_F_VERSION_1", |frontend| frontend.send_longs(SET_FEATURES, &[F_PROTOCOL], &[]));
}

#[test]
fn rings_that_the_device_does_not_have() {
    for request in [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ENABLE, GET_VRING_BASE] {
        rejected("a ring beyond the 2", |frontend| frontend.send_words(request, &[2, 8]));
    }
    rejected("a ring beyond the 2", |frontend| {
        frontend.send_longs(SET_VRING_KICK, &[7], &[frontend.kicks[0].as_raw_fd()]);
    });
}

#[test]
fn invalid_memory_tables() {
    let table = |longs: &'static [u64], fds: usize| {
        move |frontend: &Frontend| {
            let fds: Vec<RawFd> = vec![frontend.memory.as_raw_fd(); fds];
            frontend.send_longs(SET_MEM_TABLE, longs, &fds);
        }
    };
    rejected("of 2 regions with 1 descriptors", table(&[2, GUEST, 4096, USER, 0, 0, 4096, 0, 0], 1));
    rejected("with 40 bytes; it needs", table(&[2, GUEST, 4096, USER, 0], 2));
    rejected("it is empty or ends past", table(&[1, GUEST, 0, USER, 0], 1));
    rejected("it is empty or ends past", table(&[1, u64::MAX - 100, 4096, USER, 0], 1));
    rejected("it is empty or ends past", table(&[1, GUEST, 4096, USER, u64::MAX - 4], 1));
    rejected("its file has 8388608 bytes", table(&[1, GUEST, MEMORY + 1, USER, 0], 1));
    rejected("it overlaps another region", table(&[2, GUEST, 8192, USER, 0, GUEST + 4096, 8192, USER, 0], 2));
    rejected("where there is no such region", |frontend| {
        frontend.send_longs(REM_MEM_REG, &[0, GUEST + 4096, 4096, USER, 0], &[]);
    });
    rejected("ADD_MEM_REG without a descriptor", |frontend| {
        frontend.send_longs(ADD_MEM_REG, &[0, 0, 4096, 0, 0], &[]);
    });
}

#[test]
fn descriptors_that_are_no_notifiers() {
    rejected("without a descriptor", |frontend| frontend.send_longs(SET_VRING_CALL, &[0], &[]));
    rejected("SET_VRING_CALL for ring 0 with a regular file; it must be an eventfd or a Unix socket", |frontend| {
        frontend.send_longs(SET_VRING_CALL, &[0], &[tempfile::tempfile().unwrap().as_raw_fd()]);
    });
    let ((read, write), (socket, _other)) = (std::io::pipe().unwrap(), UnixStream::pair().unwrap());
    for (fd, kind) in [(read.as_raw_fd(), "pipe"), (write.as_raw_fd(), "pipe"), (socket.as_raw_fd(), "socket")] {
        rejected(&format!("SET_VRING_KICK for ring 1 with a {kind}; it must be an eventfd"), |frontend| {
            frontend.send_longs(SET_VRING_KICK, &[1], &[fd]);
        });
    }
    for request in [SET_VRING_CALL, SET_VRING_ERR] {
        rejected("for ring 0 with a pipe; it must be an eventfd or a Unix socket", |frontend| {
            frontend.send_longs(request, &[0], &[write.as_raw_fd()]);
        });
    }
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let network = UdpSocket::bind("127.0.0.1:0").unwrap();
    for fd in [epoll.0.as_raw_fd(), network.as_raw_fd()] {
        for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            rejected("a descriptor was passed whose use may block", |frontend| {
                frontend.send_longs(request, &[0], &[fd]);
            });
        }
    }
}

#[test]
fn logs_that_are_too_short() {
    let all = RICH | F_LOG_ALL;
    let log = |bytes, offset, file: u64, place: [u64; 2]| {
        move |frontend: &Frontend| {
            frontend.send_longs(SET_FEATURES, &[all], &[]);
            frontend.send_longs(SET_LOG_BASE, &[bytes, offset], &[log_file(file).as_raw_fd()]);
            (0..2).for_each(|queue| frontend.set_up_ring(queue));
            (0..2).for_each(|queue| frontend.place_ring(queue, Some(place[queue as usize])));
        }
    };
    let fine = [GUEST; 2];
    rejected("and the guest's memory ends at 0x40800000: it must have 33024", log(LOG - 1, 0, LOG, fine));
    rejected("and a used ring ends at 0x40800007", log(LOG, 0, LOG, [GUEST, GUEST + MEMORY - 63]));
    rejected("and a used ring ends at", log(LOG, 0, LOG, [u64::MAX - 7, GUEST]));
    rejected("its file has 33024 bytes and it ends at 33025", log(LOG, 1, LOG, fine));
    rejected("its file has 0 bytes", log(LOG, 0, 0, fine));
    rejected("it is empty or ends past", log(0, 0, LOG, fine));
    rejected("it is empty or ends past", log(LOG, u64::MAX - 7, LOG, fine));
}

#[test]
fn logs_that_are_no_files() {
    rejected("SET_LOG_BASE without a descriptor", |frontend| frontend.send_longs(SET_LOG_BASE, &[LOG, 0], &[]));
    rejected("its descriptor is not a regular file", |frontend| {
        frontend.send_longs(SET_LOG_BASE, &[LOG, 0], &[frontend.calls[0].as_raw_fd()]);
    });
    rejected("with 8 bytes; it needs 16", |frontend| {
        frontend.send_longs(SET_LOG_BASE, &[LOG], &[log_file(LOG).as_raw_fd()]);
    });
    rejected("SET_LOG_FD without a descriptor", |frontend| frontend.send_longs(SET_LOG_FD, &[], &[]));
    rejected("SET_LOG_FD with a regular file; it must be an eventfd", |frontend| {
        frontend.send_longs(SET_LOG_FD, &[], &[log_file(LOG).as_raw_fd()]);
    });
    rejected("with 4 bytes; it needs 6", |frontend| frontend.send(SEND_RARP, 1, &[2, 0, 0, 0], &[]));
}

/// A neighbouring device, which has the same log from a well-behaved frontend, is not affected.
#[test]
fn a_log_truncated_in_use() {
    let (_dir, path, mut neighbour) = backend();
    let mut other = Frontend::connect(&path, 8);
    other.set_up(RICH, 2);
    other.log_all(RICH, 2, &log_file(LOG), 0);
    neighbour.until_up();
    let (_dir, path, mut backend) = backend();
    let mut frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH, 2);
    let log = log_file(LOG);
    frontend.log_all(RICH, 2, &log, 0);
    backend.until_up();
    log.set_len(0).unwrap();
    frontend.post_buffer(0, 2048);
    backend.put(&frame(0, 1000), Offload::default());
    let Status::Disabled(why) = backend.port.status() else { panic!("it is {:?}", backend.port.status()) };
    assert!(why.contains("the frontend truncated the dirty log"), "{why}");
    drop(frontend);
    works_again(RICH, &path, &mut backend);
    other.transmit(0, NO_HEADER, &frame(1, 200));
    assert_eq!(neighbour.take(), [(frame(1, 200), Offload::default())]);
}

#[test]
fn descriptors_beyond_count_are_closed() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (_dir, path, mut backend) = backend();
    let before = open();
    for _ in 0..50 {
        let frontend = Frontend::connect(&path, 8);
        let fds = vec![frontend.memory.as_raw_fd(); 30];
        frontend.send(SET_OWNER, 1, &[], &fds);
        frontend.send_raw(&[1, 0], &fds);
        frontend.send_raw(&[0], &fds);
        backend.until_disabled();
    }
    backend.settle();
    // Other tests run at the same time; a leak would be 4,500.
    assert!(open() < before + 500, "{} descriptors are open, {before} were before", open());
}

#[test]
fn a_frontend_that_sends_half_a_message_delays_nobody() {
    let (_dir, path, mut backend) = backend();
    let frontend = Frontend::connect(&path, 8);
    frontend.send_raw(&[1, 0, 0, 0, 1, 0], &[]);
    backend.settle();
    assert_eq!(backend.port.status(), Status::Waiting);
    drop(frontend);
    backend.settle();
    works_again(RICH, &path, &mut backend);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Rings with arbitrary contents: no panic, nothing outside the guest's memory is touched, and a frame that is
    /// received is within bounds.
    #[test]
    fn any_ring_is_survived(
        descriptors in prop::collection::vec((0..MEMORY + 64, 0..5000u32, 0..8u16, 0..10u16), 16),
        indirect in prop::collection::vec((0..MEMORY + 64, 0..5000u32, 0..8u16, 0..10u16), 8),
        heads in prop::collection::vec(0..9u16, 8),
        available in 0..10u16,
        header in prop::array::uniform12(any::<u8>()),
    ) {
        let (_dir, path, mut backend) = backend();
        let mut frontend = Frontend::connect(&path, 8);
        frontend.set_up(RICH, 2);
        backend.until(|port| port.status() == Status::Up);
        for at in [BUFFERS, BUFFERS + 512] {
            frontend.write(at, &header);
        }
        for (index, &(address, len, flags, next)) in indirect.iter().enumerate() {
            frontend.write(BUFFERS + 16 * index as u64, &descriptor(GUEST + address, len, flags, next));
        }
        for queue in 0..2 {
            for (index, &(address, len, flags, next)) in descriptors.iter().skip(8 * queue).take(8).enumerate() {
                // Some are tables, some begin with the header.
                let address = if flags & 5 != 0 { BUFFERS } else { address };
                frontend.descriptor(queue as u32, index as u16, address, len, flags, next);
            }
            for head in &heads {
                frontend.push(queue as u32, *head);
            }
            frontend.set_available(queue as u32, available);
        }
        for _ in 0..3 {
            backend.put(&frame(0, 1500), Offload::default());
            let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
            for frame in batch.frames() {
                prop_assert!(frame.bytes() > 0 && frame.bytes() <= 65557);
                prop_assert_eq!(bytes(&frame).len() as u64, frame.bytes());
            }
            let frames = batch.len();
            backend.port.consume(frames);
            backend.port.flush(Nanos(0));
        }
    }

    /// Arbitrary messages with arbitrary descriptors: no panic, and the next frontend is served.
    #[test]
    fn any_messages_are_survived(
        messages in prop::collection::vec(
            (0..46u32, prop::sample::select(vec![1u32, 9, 5, 0]), prop::collection::vec(0..40u64, 0..10), 0..3usize), 1..20),
    ) {
        let (_dir, path, mut backend) = backend();
        let frontend = Frontend::connect(&path, 8);
        frontend.set_up(RICH, 2);
        for (request, flags, longs, fds) in messages {
            let payload: Vec<u8> = longs.iter().flat_map(|long| long.to_ne_bytes()).collect();
            frontend.send(request, flags, &payload, &vec![frontend.memory.as_raw_fd(); fds]);
        }
        drop(frontend);
        backend.until(|port| port.status() != Status::Up);
        backend.settle();
        works_again(RICH, &path, &mut backend);
    }
}
