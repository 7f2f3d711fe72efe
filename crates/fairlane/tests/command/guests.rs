//! Guests of a running backend.

use crate::frontend::{F_PROTOCOL, F_VERSION_1, Frontend, HEADER, MEMORY, file_of};
use nix::sys::memfd::MFdFlags;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
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
    let before = to.used_index(0);
    wait_for("a frame", || {
        let index = from.available[1] % 64;
        from.transmit(index, [0; HEADER], &frame);
        from.kick(1);
        std::thread::sleep(Duration::from_millis(5));
        to.used_index(0) != before
    });
    // Post the used buffers again.
    for (head, _) in to.completed(0) {
        to.post_buffer(head as u16, BUFFER);
    }
    to.kick(0);
}

/// Waits until a condition holds, for at most a minute.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
