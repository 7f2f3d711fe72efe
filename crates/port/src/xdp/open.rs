//! Opening a socket for each queue of a card (linux/if_xdp.h, linux/net/xdp/xsk.c), unless there are those of a former
//! process.

use super::memory::{Layout, Memory, RECEIVE, TRANSMIT};
use super::program::{Hook, Program};
use super::sockets::{self, GROUPS, Mapped, Sockets};
use super::transmit::Transmit;
use super::{Error, Mode, Xdp};
use crate::Status;
use crate::card::open::{Found, Which, find, raise_send_buffer, receiver};
use crate::card::{ETHERNET, TAG};
use crate::interface::{self, check, get, set};
use crate::software_offload::SoftwareOffload;
use crate::store;
use fairlane_core::time::Nanos;
use libc::SOL_XDP;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How often, and how long each time, to wait for a queue that another socket has.
const RELEASES: u32 = 100;
const RELEASE: Duration = Duration::from_millis(10);

pub(super) fn open(name: &str) -> Result<Xdp, Error> {
    let found = find(name)?;
    let layout = layout(name, &found)?;
    let (mapped, without_driver) = (Cell::new(None), Cell::new(None));
    // A process that still serves releases nothing.
    let patience = if store::is_others() { 0 } else { RELEASES };
    let kept = |fds| {
        let (sockets, kept) = Sockets::of(fds, layout)?;
        mapped.set(Some(kept));
        Some(sockets)
    };
    let open = || {
        let driver = Opening { name, index: found.index, layout, hook: Hook::Driver, patience };
        let (sockets, new) = match driver.open() {
            // Anything else would fail again.
            Err(why @ Error::Step { .. }) => {
                without_driver.set(Some(why.to_string()));
                Opening { hook: Hook::Stack, ..driver }.open()?
            }
            other => other?,
        };
        mapped.set(Some(new));
        Ok::<_, Error>(sockets)
    };
    let sockets = store::several(&format!("xdp {name}"), kept, open)?;
    let mapped = mapped.take().expect("what returns sockets sets it");
    over(name, found, sockets, mapped, without_driver.take())
}

/// The layout of the memory for an interface as it is now.
fn layout(name: &str, found: &Found) -> Result<Layout, Error> {
    let whole = (found.mtu + ETHERNET + TAG) as usize;
    let Some(size) = Memory::size_for(whole) else {
        let most = Memory::LARGEST as u32 - ETHERNET - TAG;
        return Err(Error::Mtu { name: name.into(), mtu: found.mtu, most });
    };
    let address = found.control.address(found.request);
    let address = address.map_err(|error| Error::Step { name: name.into(), step: "SIOCGIFHWADDR", error })?;
    Ok(Layout { index: found.index, address, queues: found.control.queues(found.request), size })
}

/// A card over sockets of this interface.
pub(super) fn over(
    name: &str,
    found: Found,
    sockets: Arc<Sockets>,
    mapped: Mapped,
    without_driver: Option<String>,
) -> Result<Xdp, Error> {
    let Mapped { memory, received, sent } = mapped;
    let failed = |error| Error::Step { name: name.into(), step: "XDP_OPTIONS", error };
    let mode = match (memory.is_in_stack(), has_zero_copy(&sockets.queues[0]).map_err(failed)?) {
        (true, _) => Mode::Stack,
        (false, true) => Mode::ZeroCopy,
        (false, false) => Mode::Driver,
    };
    let (queues, groups) = (sockets.queues(received, &memory), sockets.groups(name)?);
    let Found { index, mtu, control, changes, .. } = found;
    Ok(Xdp {
        memory,
        queues,
        groups,
        turn: 0,
        has_consumed: false,
        offered_groups: 0,
        transmit: Transmit::new(sent, mode == Mode::ZeroCopy),
        software_offload: SoftwareOffload::default(),
        retry: Nanos(0),
        mtu,
        status: Status::Up,
        mode,
        without_driver,
        index,
        control,
        changes,
        _sockets: sockets,
    })
}

/// An attempt to open a card.
#[derive(Clone, Copy)]
struct Opening<'a> {
    name: &'a str,
    /// The interface's index.
    index: libc::c_int,
    layout: Layout,
    hook: Hook,
    /// How often to try again what another process uses.
    patience: u32,
}

impl Opening<'_> {
    fn open(self) -> Result<(Sockets, Mapped), Error> {
        let Opening { name, index, layout, hook, .. } = self;
        let (memory, file) = Memory::new(layout).map_err(self.failed("memfd_create"))?;
        memory.set_in_stack(hook == Hook::Stack);
        let first = interface::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|error| match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => Error::NoSockets,
            _ => self.failed("socket")(error),
        })?;
        set(&first, SOL_XDP, libc::XDP_UMEM_REG, &memory.registration()).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOBUFS | libc::ENOMEM) => {
                    Error::Memory { name: name.into(), mebibytes: layout.bytes() >> 20 }
                }
                _ => self.failed("XDP_UMEM_REG")(error),
            }
        })?;
        // A driver may want to have the program before it is asked for zero copy.
        let attach = || Program::attach(hook, index, layout.address, layout.queues);
        let program = self.patiently(attach, |(_, error)| error).map_err(|(step, error)| self.failed(step)(error))?;
        let sent = self.transmit(&first)?;
        let mut received = vec![self.receive(&first, &memory, 0)?];
        // Without a flag the kernel tries zero copy, and copies if the driver cannot.
        let copy = if hook == Hook::Stack { libc::XDP_COPY } else { 0 };
        self.bind(&first, 0, libc::XDP_USE_NEED_WAKEUP | copy, None)?;
        raise_send_buffer(&first, 2 * TRANSMIT as usize * layout.size);
        let mut queues = vec![Arc::new(first)];
        for queue in 1..layout.queues {
            let socket = interface::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(self.failed("socket"))?;
            received.push(self.receive(&socket, &memory, queue)?);
            set(&socket, SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &1u32)
                .map_err(self.failed("XDP_UMEM_COMPLETION_RING"))?;
            self.bind(&socket, queue, libc::XDP_SHARED_UMEM, Some(&*queues[0]))?;
            queues.push(Arc::new(socket));
        }
        for (number, queue) in (0..).zip(&queues) {
            program.give(number, queue).map_err(self.failed("BPF_MAP_UPDATE_ELEM"))?;
        }
        let groups = Arc::new(receiver(name, index, GROUPS, Which::Groups)?);
        let sockets = Sockets { queues, groups, link: program.link, file };
        sockets.note(&memory).map_err(self.failed("SO_COOKIE"))?;
        Ok((sockets, Mapped { memory, received, sent }))
    }

    /// Makes the rings for what a queue receives, with all of its frames in the first.
    fn receive(self, socket: &OwnedFd, memory: &Memory, queue: u32) -> Result<sockets::Received, Error> {
        set(socket, SOL_XDP, libc::XDP_UMEM_FILL_RING, &RECEIVE).map_err(self.failed("XDP_UMEM_FILL_RING"))?;
        set(socket, SOL_XDP, libc::XDP_RX_RING, &RECEIVE).map_err(self.failed("XDP_RX_RING"))?;
        let (mut fill, received) = sockets::received(socket).map_err(self.failed("mmap"))?;
        memory.places(queue * RECEIVE..(queue + 1) * RECEIVE).for_each(|place| fill.push(place));
        fill.publish();
        Ok((fill, received))
    }

    /// Makes the rings for what is sent.
    fn transmit(self, socket: &OwnedFd) -> Result<sockets::Sent, Error> {
        set(socket, SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &TRANSMIT)
            .map_err(self.failed("XDP_UMEM_COMPLETION_RING"))?;
        set(socket, SOL_XDP, libc::XDP_TX_RING, &TRANSMIT).map_err(self.failed("XDP_TX_RING"))?;
        sockets::sent(socket).map_err(self.failed("mmap"))
    }

    /// Binds a socket to a queue, with memory of its own or of another socket.
    fn bind(self, socket: &OwnedFd, queue: u32, flags: u16, shared: Option<&OwnedFd>) -> Result<(), Error> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: self.index as u32,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared.map_or(0, |socket| socket.as_fd().as_raw_fd() as u32),
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` has `len` bytes, which the call reads.
        let bind = || check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) });
        self.patiently(bind, |error| error).map(drop).map_err(self.failed("bind"))
    }

    /// Tries something until nobody else uses it. The kernel releases the queues of a backend that just ended a little later
    /// (`xp_put_pool` in linux/net/xdp/xsk_buff_pool.c), and so does a manager that was told to close what it kept.
    fn patiently<T, E>(self, attempt: impl Fn() -> Result<T, E>, of: impl Fn(&E) -> &io::Error) -> Result<T, E> {
        let mut done = attempt();
        for _ in 0..self.patience {
            if !done.as_ref().is_err_and(|error| of(error).raw_os_error() == Some(libc::EBUSY)) {
                break;
            }
            std::thread::sleep(RELEASE);
            done = attempt();
        }
        done
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

/// Where a socket's rings have their words and entries.
///
/// # Errors
/// The system's error.
pub(super) fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    get(socket, SOL_XDP, libc::XDP_MMAP_OFFSETS, libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none })
}

/// Whether the driver receives into our memory and sends from it.
fn has_zero_copy(socket: &OwnedFd) -> io::Result<bool> {
    let options = get(socket, SOL_XDP, libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}
