//! Bounds on what a frontend can cost the backend: descriptors walked for a frame, files held, time waited for a
//! socket.

mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::stats::DropReason;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Control, Put, Refusal, Status};
use frontend::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// An indirect table with the most descriptors allowed, all of them empty.
fn table_of_empty_descriptors(frontend: &Frontend, flags: u16) {
    let table: Vec<u8> =
        (0..32_768u32).flat_map(|at| descriptor(GUEST + BUFFERS, 0, flags | NEXT, (at + 1) as u16)).collect();
    frontend.write(BUFFERS + (4 << 20), &table);
}

#[test]
fn receive_chains_of_empty_descriptors_are_not_walked() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    table_of_empty_descriptors(&frontend, WRITE);
    for index in 0..8 {
        frontend.descriptor(0, index, BUFFERS + (4 << 20), 32_768 * 16, INDIRECT, 0);
        frontend.push(0, index);
    }
    backend.put(&frame(0, 100), Offload::default());
    backend.assert_disabled("a descriptor of 0 bytes");
}

#[test]
fn transmit_chains_of_empty_descriptors_are_not_walked() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    table_of_empty_descriptors(&frontend, 0);
    frontend.descriptor(1, 0, BUFFERS + (4 << 20), 32_768 * 16, INDIRECT, 0);
    frontend.push(1, 0);
    assert!(backend.take().is_empty());
    backend.assert_disabled("a descriptor of 0 bytes");
}

#[test]
fn a_header_in_descriptors_of_its_own_is_served_and_an_empty_one_before_it_is_not() {
    // CVE-2022-2132: a header that spans descriptors, and chains of many buffers.
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    let bytes = frame(3, 60);
    frontend.write(BUFFERS, &NO_HEADER);
    frontend.write(BUFFERS + HEADER as u64, &bytes);
    frontend.descriptor(1, 0, BUFFERS, 5, NEXT, 1);
    frontend.descriptor(1, 1, BUFFERS + 5, 7, NEXT, 2);
    frontend.descriptor(1, 2, BUFFERS + 12, 60, 0, 0);
    frontend.push(1, 0);
    assert_eq!(backend.take(), [(bytes, Offload::default())]);
    frontend.descriptor(1, 3, BUFFERS, 0, NEXT, 0);
    frontend.push(1, 3);
    assert!(backend.take().is_empty());
    backend.assert_disabled("a descriptor of 0 bytes");
}

#[test]
fn an_indirect_table_that_was_not_negotiated() {
    for queue in [0, 1] {
        let (_dir, _, mut backend, mut frontend) = connected(RICH & !F_INDIRECT, 8);
        let flags = if queue == 0 { WRITE } else { 0 };
        frontend.write(BUFFERS, &descriptor(GUEST + BUFFERS + 4096, 2048, flags, 0));
        frontend.descriptor(queue, 0, BUFFERS, 16, INDIRECT, 0);
        frontend.push(queue, 0);
        backend.put(&frame(0, 100), Offload::default());
        backend.take();
        backend.assert_disabled("VIRTIO_RING_F_INDIRECT_DESC was not negotiated");
    }
}

/// Buffers of 400 tiny segments, for a driver without segmentation offload: each TCP segment walks them, and the sum is
/// bounded.
#[test]
fn the_bound_on_segments_covers_a_whole_segmented_frame() {
    const PIECES: u16 = 400;
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN | F_INDIRECT | F_MRG_RXBUF, 8);
    let piece = |at: u16| {
        let last = at == PIECES - 1;
        let (len, flags) = if last { (4096, WRITE) } else { (1, WRITE | NEXT) };
        descriptor(GUEST + BUFFERS + (1 << 20) + u64::from(at), len, flags, at + 1)
    };
    let table: Vec<u8> = (0..PIECES).flat_map(piece).collect();
    frontend.write(BUFFERS, &table);
    for index in 0..8 {
        frontend.descriptor(0, index, BUFFERS, table.len() as u32, INDIRECT, 0);
        frontend.push(0, index);
    }
    let refused = Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::TooLarge)) };
    assert_eq!(backend.put(&tcp_frame(5000), tcp_offload(Some(1000))), refused);
    assert_eq!(backend.put(&tcp_frame(2000), tcp_offload(Some(1000))), Put { accepted: 1, refusal: None });
    assert_eq!(backend.port.status(), Status::Up);
    assert_eq!(frontend.completed(0), [(0, 1066), (1, 1066)], "the first frame used nothing up");
}

#[test]
fn a_sparse_file_takes_no_more_address_space_than_allowed() {
    let sparse = file_of("sparse", 4 << 40, MFdFlags::empty());
    let file = sparse.as_raw_fd();
    let (most, half) = (1 << 40, 1 << 39);
    // As one region, by its offset in the file, and as two.
    let tables: [&[u64]; 3] = [
        &[1, GUEST, most + 4096, USER, 0],
        &[1, GUEST, 4096, USER, most],
        &[2, 0, half, USER, 0, half, half + 4096, USER + half, 0],
    ];
    for table in tables {
        let (_dir, path) = place();
        let mut backend = Backend::listen(&path, 1);
        let frontend = Frontend::connect(&path, 8);
        frontend.set_up(RICH, 0);
        frontend.send_longs(SET_MEM_TABLE, table, &vec![file; table[0] as usize]);
        let why = backend.until_disabled();
        assert!(why.contains("more than 1024 GiB of files would be mapped"), "{why}");
    }
}

#[test]
fn truncated_huge_pages_disable_their_own_port_and_are_unmapped() {
    const HUGE: u64 = 2 << 20;
    let pages = "/proc/sys/vm/nr_hugepages";
    let reserved: u64 = std::fs::read_to_string(pages).unwrap().trim().parse().unwrap();
    if reserved < 8
        && let Err(error) = std::fs::write(pages, "8")
    {
        // Past the test harness, which shows only what failed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs 8 huge pages (root reserves them): {error}");
        return;
    }
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let memory = file_of("huge", 4 * HUGE, MFdFlags::MFD_HUGETLB);
    let frontend = Frontend::over(UnixStream::connect(&path).unwrap(), memory.try_clone().unwrap(), 8);
    frontend.send_longs(SET_OWNER, &[], &[]);
    frontend.send_longs(SET_FEATURES, &[RICH], &[]);
    frontend.send_longs(SET_PROTOCOL_FEATURES, &[1 << 3 | 1 << 15], &[]);
    // A region that ends inside a page.
    let table = [1, GUEST, 4 * HUGE - 4096, USER, 0];
    frontend.send_longs(SET_MEM_TABLE, &table, &[memory.as_raw_fd()]);
    (0..2).for_each(|queue| frontend.set_up_ring(queue));
    backend.until_up();
    memory.set_len(0).unwrap();
    assert!(backend.take().is_empty());
    backend.assert_disabled("truncated its guest's memory");
    drop((frontend, memory));
    backend.settle();
    drop(backend);
    // Nothing stays mapped.
    until(|| !std::fs::read_to_string("/proc/self/maps").unwrap().contains("/memfd:huge"));
    if reserved < 8 {
        std::fs::write(pages, reserved.to_string()).unwrap();
    }
}

/// How many of this process's descriptors are this file.
fn held(file: &tempfile::NamedTempFile) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter(|entry| std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to == file.path())).count()
}

#[test]
fn excess_descriptors_are_closed() {
    // CVE-2020-10726, CVE-2022-0669.
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let file = tempfile::NamedTempFile::new().unwrap();
    for count in [33, 64, 253] {
        for _ in 0..5 {
            let frontend = Frontend::connect(&path, 8);
            frontend.send_longs(SET_OWNER, &[], &vec![file.as_raw_fd(); count]);
            for _ in 0..4 {
                backend.settle();
            }
            drop(frontend);
            backend.settle();
        }
    }
    // Our own is the only one.
    until(|| held(&file) == 1);
}

#[test]
fn a_socket_whose_owner_is_slow_to_accept_is_not_replaced() {
    let (_dir, path) = place();
    let address = UnixAddr::new(&path).unwrap();
    let stream = || socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    let owner = stream();
    bind(owner.as_raw_fd(), &address).unwrap();
    listen(&owner, Backlog::new(0).unwrap()).unwrap();
    let mut waiting = Vec::new();
    loop {
        let caller = stream();
        match connect(caller.as_raw_fd(), &address) {
            Ok(()) => waiting.push(caller),
            Err(error) => break assert_eq!(error, nix::errno::Errno::EAGAIN, "its queue is full"),
        }
    }
    let error = VhostUser::listen("test", &path, 1).err().unwrap().to_string();
    assert!(error.contains("is in use by another process"), "{error}");
    assert!(path.exists());
    // Once nobody listens the socket is stale, and is replaced.
    drop((owner, waiting));
    VhostUser::listen("test", &path, 1).unwrap();
}

#[test]
fn guests_memory_is_not_in_core_dumps() {
    let (_dir, _, _backend, _frontend) = connected(RICH, 8);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    // Other tests of this program map memory of this name at the same time, and none of it may be in a dump.
    let mut mapped = 0;
    let mut is_guest = false;
    for line in maps.lines() {
        if line.split(' ').next().is_some_and(|first| !first.ends_with(':')) {
            is_guest = line.contains("/memfd:guest");
        } else if is_guest && let Some(flags) = line.strip_prefix("VmFlags:") {
            // dd: do not include the area in a core dump (proc(5)).
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
            mapped += 1;
        }
    }
    assert!(mapped > 0);
}

/// The file descriptions of its eventfds are the frontend's as well: it can make a write to them block for as long as
/// it likes.
#[test]
fn full_blocking_eventfds_block_no_worker() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    let error = EventFd::from_flags(EfdFlags::empty()).unwrap();
    frontend.send_longs(SET_VRING_ERR, &[0], &[error.as_raw_fd()]);
    backend.settle();
    for event in frontend.calls.iter().chain([&error]) {
        fcntl(event, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        event.write(u64::MAX - 1 - poll_value(event)).unwrap();
    }
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        frontend.post_buffer(0, 4096);
        assert_eq!(backend.put(&frame(0, 100), Offload::default()).accepted, 1);
        frontend.transmit(0, NO_HEADER, &frame(1, 60));
        assert_eq!(backend.take().len(), 1);
        // And when it is notified of its own error.
        frontend.descriptor(1, 1, BUFFERS, 0, 0, 0);
        frontend.push(1, 1);
        backend.take();
        backend.assert_disabled("a descriptor of 0 bytes");
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(30)).expect("the worker blocks on its frontend, or failed");
}

/// An eventfd's count, without reading it.
fn poll_value(event: &EventFd) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", event.as_raw_fd())).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
    u64::from_str_radix(count.trim(), 16).unwrap()
}
