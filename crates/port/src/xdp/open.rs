//! Opening a socket for each queue of a card (linux/if_xdp.h, linux/net/xdp/xsk.c).

use super::memory::Memory;
use super::program::{Hook, Program};
use super::queue::Queue;
use super::ring::{Consumer, Kind, Producer};
use super::transmit::Transmit;
use super::{Error, Mode, Xdp};
use crate::Status;
use crate::card::open::{Found, Which, find, raise_send_buffer, receive, set};
use crate::card::{ETHERNET, TAG};
use crate::interface::{self, check};
use crate::software_offload::SoftwareOffload;
use fairlane_core::time::Nanos;
use libc::SOL_XDP;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// Frames of a queue, and entries of its rings. Nothing pushes back on the wire, so they must hold the frames that
/// arrive while the worker waits for its CPU.
const RECEIVE: usize = 2048;

/// Frames to be sent. Those in the ring have left the scheduler's control; a large TCP frame becomes up to so many.
const TRANSMIT: usize = 512;

/// Blocks of the packet socket's ring for frames to groups: 30 frames.
const GROUPS: usize = 1;

/// How often, and how long each time, to wait for a queue that another socket has.
const RELEASES: u32 = 100;
const RELEASE: Duration = Duration::from_millis(10);

pub(super) fn open(name: &str) -> Result<Xdp, Error> {
    let found = find(name)?;
    let whole = (found.mtu + ETHERNET + TAG) as usize;
    let Some(size) = Memory::size_for(whole) else {
        let most = Memory::LARGEST as u32 - ETHERNET - TAG;
        return Err(Error::Mtu { name: name.into(), mtu: found.mtu, most });
    };
    let driver = Opening { name, found: &found, size, hook: Hook::Driver };
    let (opened, without_driver) = match driver.open() {
        // Anything else would fail again.
        Err(why @ Error::Step { .. }) => (Opening { hook: Hook::Stack, ..driver }.open()?, Some(why.to_string())),
        other => (other?, None),
    };
    let Opened { program, memory, queues, transmit, mode } = opened;
    let groups = receive(name, found.index, GROUPS, Which::Groups)?;
    let Found { index, mtu, control, changes, .. } = found;
    Ok(Xdp {
        memory,
        queues,
        groups,
        turn: 0,
        has_consumed: false,
        offered_groups: 0,
        transmit,
        software_offload: SoftwareOffload::default(),
        retry: Nanos(0),
        mtu,
        status: Status::Up,
        mode,
        without_driver,
        index,
        control,
        changes,
        _program: program,
    })
}

/// An attempt to open a card.
#[derive(Clone, Copy)]
struct Opening<'a> {
    name: &'a str,
    found: &'a Found,
    /// Bytes of a frame.
    size: usize,
    hook: Hook,
}

struct Opened {
    program: Program,
    memory: Memory,
    queues: Vec<Queue>,
    transmit: Transmit,
    mode: Mode,
}

impl Opening<'_> {
    fn open(self) -> Result<Opened, Error> {
        let Opening { name, found, size, hook } = self;
        let count = found.control.queues(found.request);
        let address = found.control.address(found.request).map_err(self.failed("SIOCGIFHWADDR"))?;
        let frames = count as usize * RECEIVE + TRANSMIT;
        let memory = Memory::new(size, frames).map_err(self.failed("mmap"))?;
        let first = interface::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|error| match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => Error::NoSockets,
            _ => self.failed("socket")(error),
        })?;
        set(&first, SOL_XDP, libc::XDP_UMEM_REG, &memory.registration()).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOBUFS | libc::ENOMEM) => {
                    Error::Memory { name: name.into(), mebibytes: (frames * size) >> 20 }
                }
                _ => self.failed("XDP_UMEM_REG")(error),
            }
        })?;
        // A driver may want to have the program before it is asked for zero copy.
        let program =
            Program::attach(hook, found.index, address, count).map_err(|(step, error)| self.failed(step)(error))?;
        let (ring, sent) = self.transmit(&first)?;
        let (fill, received) = self.receive(&first, &memory, 0)?;
        // Without a flag the kernel tries zero copy, and copies if the driver cannot.
        let copy = if hook == Hook::Stack { libc::XDP_COPY } else { 0 };
        self.bind(&first, 0, libc::XDP_USE_NEED_WAKEUP | copy, None)?;
        raise_send_buffer(&first, 2 * TRANSMIT * size);
        let mode = match (hook, has_zero_copy(&first).map_err(self.failed("XDP_OPTIONS"))?) {
            (Hook::Stack, _) => Mode::Stack,
            (Hook::Driver, true) => Mode::ZeroCopy,
            (Hook::Driver, false) => Mode::Driver,
        };
        let mut queues = vec![Queue::new(first, fill, received)];
        for queue in 1..count {
            let socket = interface::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(self.failed("socket"))?;
            let (fill, received) = self.receive(&socket, &memory, queue as usize)?;
            set(&socket, SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &1u32)
                .map_err(self.failed("XDP_UMEM_COMPLETION_RING"))?;
            self.bind(&socket, queue, libc::XDP_SHARED_UMEM, Some(&queues[0].socket))?;
            queues.push(Queue::new(socket, fill, received));
        }
        for (number, queue) in (0..).zip(&queues) {
            program.give(number, &queue.socket).map_err(self.failed("BPF_MAP_UPDATE_ELEM"))?;
        }
        let free = memory.places(frames - TRANSMIT..frames).collect();
        let transmit = Transmit::new(ring, sent, free, mode == Mode::ZeroCopy);
        Ok(Opened { program, memory, queues, transmit, mode })
    }

    /// Makes the rings for what a queue receives, with all of its frames in the first.
    fn receive(
        self,
        socket: &OwnedFd,
        memory: &Memory,
        queue: usize,
    ) -> Result<(Producer<u64>, Consumer<libc::xdp_desc>), Error> {
        let size = RECEIVE as u32;
        set(socket, SOL_XDP, libc::XDP_UMEM_FILL_RING, &size).map_err(self.failed("XDP_UMEM_FILL_RING"))?;
        set(socket, SOL_XDP, libc::XDP_RX_RING, &size).map_err(self.failed("XDP_RX_RING"))?;
        let offsets = offsets(socket).map_err(self.failed("XDP_MMAP_OFFSETS"))?;
        let fill = Kind { place: libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t, offsets: offsets.fr };
        let mut fill = Producer::of(socket, fill, size).map_err(self.failed("mmap"))?;
        let received = Kind { place: libc::XDP_PGOFF_RX_RING, offsets: offsets.rx };
        let received = Consumer::of(socket, received, size).map_err(self.failed("mmap"))?;
        memory.places(queue * RECEIVE..(queue + 1) * RECEIVE).for_each(|place| fill.push(place));
        fill.publish();
        Ok((fill, received))
    }

    /// Makes the rings for what is sent.
    fn transmit(self, socket: &OwnedFd) -> Result<(Producer<libc::xdp_desc>, Consumer<u64>), Error> {
        let size = TRANSMIT as u32;
        set(socket, SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &size).map_err(self.failed("XDP_UMEM_COMPLETION_RING"))?;
        set(socket, SOL_XDP, libc::XDP_TX_RING, &size).map_err(self.failed("XDP_TX_RING"))?;
        let offsets = offsets(socket).map_err(self.failed("XDP_MMAP_OFFSETS"))?;
        let ring = Kind { place: libc::XDP_PGOFF_TX_RING, offsets: offsets.tx };
        let sent = Kind { place: libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t, offsets: offsets.cr };
        Ok((
            Producer::of(socket, ring, size).map_err(self.failed("mmap"))?,
            Consumer::of(socket, sent, size).map_err(self.failed("mmap"))?,
        ))
    }

    /// Binds a socket to a queue, with memory of its own or of another socket.
    fn bind(self, socket: &OwnedFd, queue: u32, flags: u16, shared: Option<&OwnedFd>) -> Result<(), Error> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: self.found.index as u32,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared.map_or(0, |socket| socket.as_fd().as_raw_fd() as u32),
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` has `len` bytes, which the call reads.
        let bind = || check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) });
        let mut bound = bind();
        // The kernel releases the queues of a backend that just ended a little later (`xp_put_pool` in
        // linux/net/xdp/xsk_buff_pool.c).
        for _ in 0..RELEASES {
            if !bound.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
                break;
            }
            std::thread::sleep(RELEASE);
            bound = bind();
        }
        bound.map(drop).map_err(self.failed("bind"))
    }

    /// The error of a step that the system refused.
    fn failed(self, step: &'static str) -> impl FnOnce(io::Error) -> Error {
        let name = self.name.to_owned();
        move |error| match error.raw_os_error() {
            Some(libc::EPERM) => Error::NotAllowed { name },
            Some(libc::EBUSY | libc::EEXIST) => Error::Taken { name },
            _ => Error::Step { name, step, error },
        }
    }
}

/// Reads an option of a socket.
fn get<T>(socket: &OwnedFd, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `value` has `len` bytes to be written, and is numbers.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), SOL_XDP, option, to, &raw mut len) })?;
    Ok(value)
}

/// Where a socket's rings have their words and entries.
fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    get(socket, libc::XDP_MMAP_OFFSETS, libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none })
}

/// Whether the driver receives into our memory and sends from it.
fn has_zero_copy(socket: &OwnedFd) -> io::Result<bool> {
    let options = get(socket, libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}
