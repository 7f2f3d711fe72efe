//! A hostile frontend: its network card, the thread that repeats an attack, and an accomplice at the far end of the link that
//! sends frames to it.

use super::cases::Case;
use super::{ACCOMPLICE, NOBODY, THEIRS, mac, renice};
use crate::frontend::*;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::MFdFlags;
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Ring size: as many entries as its memory has buffers.
pub(crate) const SIZE: u16 = 128;

/// A running attack.
pub(crate) struct Attack {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Card)>,
}

impl Attack {
    /// Starts to repeat an attack at a vif's socket.
    pub(crate) fn start(case: &'static Case, socket: PathBuf, mac: [u8; 6]) -> Attack {
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = Attacker { socket, mac, stop: stop.clone(), times: Cell::new(0) };
        let thread = thread::spawn(move || {
            renice(THEIRS);
            loop {
                // Each card is dropped before the next one connects. The last one stays, so that its final state can be checked.
                let card = (case.run)(&attacker);
                if attacker.should_stop() {
                    return (attacker.times.get(), card);
                }
            }
        });
        Attack { stop, thread }
    }

    /// Stops after the current attack. Returns how often it was carried out, and the last card.
    pub(crate) fn end(self) -> (u64, Card) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the attack does not panic")
    }
}

/// The state of an attack, for its case.
pub(crate) struct Attacker {
    socket: PathBuf,
    mac: [u8; 6],
    stop: Arc<AtomicBool>,
    times: Cell<u64>,
}

impl Attacker {
    /// Whether the attack should end.
    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts one attack.
    pub(crate) fn count(&self) {
        self.times.set(self.times.get() + 1);
    }

    /// Connects a card, without any message.
    pub(crate) fn connect_only(&self, memory: File) -> Card {
        let stream = UnixStream::connect(&self.socket).expect("the daemon listens");
        let error = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
        Card { frontend: Frontend::over(stream, memory, SIZE), mac: self.mac, error }
    }

    /// Connects a card and sets it up, with an ordinary file as guest memory.
    pub(crate) fn connect(&self, features: u64) -> Card {
        let mut card = self.connect_only(file_of("attacker", MEMORY, MFdFlags::empty()));
        card.frontend.set_up(features, 2);
        card.watch_errors();
        card
    }

    /// Waits until the backend has reported an error to the frontend, and counts the attack.
    pub(crate) fn await_verdict(&self, card: &Card) {
        let interest = PollFlags::POLLIN;
        let mut signals =
            [PollFd::new(card.error.as_fd(), interest), PollFd::new(card.frontend.stream.as_fd(), interest)];
        if poll(&mut signals, 1000u16).is_ok_and(|ready| ready > 0) {
            self.count();
        }
    }
}

/// A frontend, and the eventfd for its errors.
pub(crate) struct Card {
    pub frontend: Frontend,
    mac: [u8; 6],
    error: EventFd,
}

impl Card {
    /// Sets the error eventfds, and waits until the backend has handled all messages so far.
    pub(crate) fn watch_errors(&mut self) {
        for queue in 0..2 {
            self.frontend.send_longs(SET_VRING_ERR, &[queue], &[self.error.as_raw_fd()]);
        }
        self.settle();
    }

    /// Waits until the backend has handled all messages so far, or closed the connection.
    pub(crate) fn settle(&mut self) {
        self.frontend.send(GET_QUEUE_NUM, 1, &[], &[]);
        let mut header = [0; 12];
        while self.frontend.stream.read_exact(&mut header).is_ok() {
            let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let (request, len) = (word(0), word(8));
            if self.frontend.stream.read_exact(&mut vec![0; len as usize]).is_err() || request == GET_QUEUE_NUM {
                return;
            }
        }
    }

    /// Posts as many receive buffers as the ring has entries.
    pub(crate) fn post_all(&mut self) {
        (0..SIZE).for_each(|index| self.frontend.post_buffer(index, 2048));
    }

    /// A frame to an unknown address.
    pub(crate) fn frame(&self, len: usize) -> Vec<u8> {
        ethernet(self.mac, mac(NOBODY), len)
    }

    /// Writes a frame to an unknown address into each transmit buffer, with the length for that buffer's index, and posts all of them.
    pub(crate) fn write_frames(&mut self, len: impl Fn(u16) -> usize) {
        for index in 0..SIZE {
            self.frontend.transmit(index, NO_HEADER, &self.frame(len(index)));
        }
    }

    /// Posts all used entries of a ring again, unchanged.
    pub(crate) fn refill(&mut self, queue: u32) {
        let used = self.frontend.used_index(queue);
        self.frontend.set_available(queue, used.wrapping_add(SIZE));
        self.frontend.kick(queue);
    }

    /// Keeps the transmit ring full, and with `receive` also the receive ring, until the attack ends or for some milliseconds.
    pub(crate) fn flood(&mut self, attacker: &Attacker, receive: bool, milliseconds: u32) {
        for _ in 0..milliseconds {
            if attacker.should_stop() {
                return;
            }
            self.refill(1);
            if receive {
                self.refill(0);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// An Ethernet frame with the EtherType for local experiments.
pub(crate) fn ethernet(from: [u8; 6], to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(len, 0);
    frame
}

/// Sends about two thousand frames per second to an attacker, alternately small and large, until it is dropped.
pub(crate) struct Accomplice {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Accomplice {
    pub(crate) fn start(socket: PathBuf, attacker: [u8; 6]) -> Accomplice {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut frontend = Frontend::connect(&socket, SIZE);
            frontend.set_up(RICH, 2);
            for index in 0..SIZE {
                let len = if index % 2 == 0 { 60 } else { 1514 };
                frontend.transmit(index, NO_HEADER, &ethernet(mac(ACCOMPLICE), attacker, len));
            }
            let mut sent = SIZE;
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                let room = SIZE - sent.wrapping_sub(frontend.used_index(1));
                sent = sent.wrapping_add(room.min(10));
                frontend.set_available(1, sent);
                frontend.kick(1);
            }
        });
        Accomplice { stop, thread: Some(thread) }
    }
}

impl Drop for Accomplice {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
