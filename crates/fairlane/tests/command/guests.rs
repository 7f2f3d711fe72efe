//! Guests of a running backend.

use crate::frontend::{BUFFERS, F_PROTOCOL, F_VERSION_1, Frontend, HEADER, MEMORY, file_of};
use nix::sys::memfd::MFdFlags;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Receive buffers that a guest keeps posted.
const POSTED: u16 = 32;

/// Size of a buffer, in bytes.
const BUFFER: u32 = 2048;

/// Connects a guest and sets up its card: one queue per direction, with receive buffers posted.
pub(crate) fn guest(socket: &Path) -> Frontend {
    set_up(UnixStream::connect(socket).unwrap())
}

/// The same for a backend that connects to the guest.
pub(crate) fn accept_guest(listener: &UnixListener) -> Frontend {
    set_up(listener.accept().unwrap().0)
}

fn set_up(stream: UnixStream) -> Frontend {
    let mut guest = Frontend::over(stream, file_of("guest", MEMORY, MFdFlags::empty()), 256);
    guest.set_up(F_VERSION_1 | F_PROTOCOL, 2);
    (0..POSTED).for_each(|index| guest.post_buffer(index, BUFFER));
    guest.kick(0);
    guest
}

/// Sends broadcasts of 60 bytes until another guest receives one: those sent before its setup may be lost.
pub(crate) fn exchange_frame(from: &mut Frontend, to: &mut Frontend) {
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5]);
    // Others' broadcasts may have used all of its buffers.
    post_again(to);
    let before = to.used_index(0);
    wait_for("a frame", || {
        let index = from.available[1] % 64;
        from.transmit(index, [0; HEADER], &frame);
        from.kick(1);
        std::thread::sleep(Duration::from_millis(5));
        to.used_index(0) != before
    });
    post_again(to);
}

/// Posts the buffers that have been used.
fn post_again(guest: &mut Frontend) {
    for (head, _) in guest.completed(0) {
        guest.post_buffer(head as u16, BUFFER);
    }
    guest.kick(0);
}

/// A guest that sends frames of 1,514 bytes to nobody known, as fast as it may, until it is dropped.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Frames that the guest keeps in its ring.
    const IN_RING: u16 = 64;

    /// The same of a guest with frames that are large, and so many that the worker needs milliseconds for them.
    const LARGE_IN_RING: u16 = 1024;

    /// Connects the guest, whose address ends in `number`, and starts to send.
    pub(crate) fn start(socket: &Path, number: u8) -> Flood {
        let (mut guest, frame) = (guest(socket), frame(number, 1514));
        (0..Flood::IN_RING).for_each(|index| guest.transmit(index, [0; HEADER], &frame));
        Flood::keep(move || {
            let sent = guest.completed(1);
            sent.iter().for_each(|(index, _)| guest.push(1, *index as u16));
            guest.kick(1);
        })
    }

    /// The same with frames of 60,000 bytes, as many as the worker can move: all are the same bytes in the guest's memory, so that one
    /// write makes all of them available again.
    pub(crate) fn start_large(socket: &Path, number: u8) -> Flood {
        let (mut guest, frame) = (Frontend::connect(socket, Flood::LARGE_IN_RING), frame(number, 60_000));
        guest.set_up(F_VERSION_1 | F_PROTOCOL, 2);
        guest.write(BUFFERS + HEADER as u64, &frame);
        for index in 0..Flood::LARGE_IN_RING {
            guest.descriptor(1, index, BUFFERS, (HEADER + frame.len()) as u32, 0, 0);
            guest.push(1, index);
        }
        Flood::keep(move || {
            let next = guest.used_index(1).wrapping_add(Flood::LARGE_IN_RING);
            guest.set_available(1, next);
            guest.kick(1);
        })
    }

    /// Refills a ring again and again.
    fn keep(mut refill: impl FnMut() + Send + 'static) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stops.load(Relaxed) {
                refill();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Flood { stop, thread: Some(thread) }
    }
}

/// A frame of `len` bytes to nobody known.
fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..14].copy_from_slice(&[0x52, 0x54, 0, 0, 1, 1, 0x52, 0x54, 0, 0, 0, number, 0x88, 0xb5]);
    frame
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Waits until a condition holds, for at most a minute.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
