//! Guests of a running backend.

use crate::frontend::{F_PROTOCOL, F_VERSION_1, Frontend, HEADER, MEMORY, file_of};
use nix::sys::memfd::MFdFlags;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Buffers that a guest lends at a time.
const LENT: u16 = 32;

/// Bytes of one.
const BUFFER: u32 = 2048;

/// A guest whose card is up: one queue each way, buffers lent.
pub fn guest(socket: &Path) -> Frontend {
    settled(UnixStream::connect(socket).unwrap())
}

/// The same, where it is the backend that connects.
pub fn called(listener: &UnixListener) -> Frontend {
    settled(listener.accept().unwrap().0)
}

fn settled(stream: UnixStream) -> Frontend {
    let mut guest = Frontend::over(stream, file_of("guest", MEMORY, MFdFlags::empty()), 256);
    guest.set_up(F_VERSION_1 | F_PROTOCOL, 2);
    (0..LENT).for_each(|index| guest.lend(index, BUFFER));
    guest.kick(0);
    guest
}

/// Sends a broadcast of 60 bytes until another guest has it: what was sent before that was set up may be lost.
pub fn passes(from: &mut Frontend, to: &mut Frontend) {
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5]);
    let began = to.used_index(0);
    wait_for("a frame", || {
        let index = from.available[1] % 64;
        from.transmit(index, [0; HEADER], &frame);
        from.kick(1);
        std::thread::sleep(Duration::from_millis(5));
        to.used_index(0) != began
    });
    // What was taken is lent anew.
    for (head, _) in to.completed(0) {
        to.lend(head as u16, BUFFER);
    }
    to.kick(0);
}

/// Waits, for at most a minute.
pub fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited a minute in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
