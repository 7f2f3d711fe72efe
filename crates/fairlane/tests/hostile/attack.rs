//! A hostile frontend at work: its card, the thread in which it does a deed again and again, and an accomplice at the far end of the
//! link, which has frames come for it.

use super::deeds::Deed;
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

/// Entries of its rings: as many as its memory has buffers for.
pub const SIZE: u16 = 128;

/// An attack under way.
pub struct Attack {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Card)>,
}

impl Attack {
    /// Begins to do a deed at a vif's socket, again and again.
    pub fn begin(deed: &'static Deed, socket: PathBuf, mac: [u8; 6]) -> Attack {
        let over = Arc::new(AtomicBool::new(false));
        let attacker = Attacker { socket, mac, over: over.clone(), times: Cell::new(0) };
        let thread = thread::spawn(move || {
            renice(THEIRS);
            loop {
                // Its card must go before the next is met, and the last one stays, so that its end can be seen.
                let card = (deed.run)(&attacker);
                if attacker.is_over() {
                    return (attacker.times.get(), card);
                }
            }
        });
        Attack { over, thread }
    }

    /// Has it end after the deed at hand. Answers how often it was done, and the card of the last time.
    pub fn end(self) -> (u64, Card) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the attacker knows what it does")
    }
}

/// Who does deeds.
pub struct Attacker {
    socket: PathBuf,
    mac: [u8; 6],
    over: Arc<AtomicBool>,
    times: Cell<u64>,
}

impl Attacker {
    /// Whether it has done enough.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Counts one time more that something wicked was done.
    pub fn did(&self) {
        self.times.set(self.times.get() + 1);
    }

    /// A card that nothing was said of yet.
    pub fn meet(&self, memory: File) -> Card {
        let stream = UnixStream::connect(&self.socket).expect("the daemon listens");
        let error = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
        Card { frontend: Frontend::over(stream, memory, SIZE), mac: self.mac, error }
    }

    /// A card that is up, its guest's memory an ordinary file.
    pub fn connect(&self, features: u64) -> Card {
        let mut card = self.meet(file_of("attacker", MEMORY, MFdFlags::empty()));
        card.frontend.set_up(features, 2);
        card.hear_errors();
        card
    }

    /// Waits until the backend has told the card's frontend that it was caught, and counts that.
    pub fn await_verdict(&self, card: &Card) {
        let interest = PollFlags::POLLIN;
        let mut said = [PollFd::new(card.error.as_fd(), interest), PollFd::new(card.frontend.stream.as_fd(), interest)];
        if poll(&mut said, 1000u16).is_ok_and(|ready| ready > 0) {
            self.did();
        }
    }
}

/// A frontend, and where it is told that it broke a rule.
pub struct Card {
    pub frontend: Frontend,
    mac: [u8; 6],
    error: EventFd,
}

impl Card {
    /// Asks to be told of its errors, and waits until all that was said so far is done.
    pub fn hear_errors(&mut self) {
        for queue in 0..2 {
            self.frontend.send_longs(SET_VRING_ERR, &[queue], &[self.error.as_raw_fd()]);
        }
        self.settle();
    }

    /// Waits until all that was said so far is done, or it was turned away for that.
    pub fn settle(&mut self) {
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

    /// Lends as many buffers as there are entries.
    pub fn lend_all(&mut self) {
        (0..SIZE).for_each(|index| self.frontend.lend(index, 2048));
    }

    /// A frame for nobody.
    pub fn frame(&self, len: usize) -> Vec<u8> {
        ethernet(self.mac, mac(NOBODY), len)
    }

    /// Writes a frame for nobody into each transmit buffer, its length by the buffer's number; all entries name them in order.
    pub fn write_frames(&mut self, len: impl Fn(u16) -> usize) {
        for index in 0..SIZE {
            self.frontend.transmit(index, NO_HEADER, &self.frame(len(index)));
        }
    }

    /// Gives back all entries of a ring that were used, as they are.
    pub fn refill(&mut self, queue: u32) {
        let used = self.frontend.used_index(queue);
        self.frontend.set_available(queue, used.wrapping_add(SIZE));
        self.frontend.kick(queue);
    }

    /// Keeps its transmit ring full, and its receive ring if it lends, until the attack is over or for so many milliseconds.
    pub fn flood(&mut self, attacker: &Attacker, lends: bool, milliseconds: u32) {
        for _ in 0..milliseconds {
            if attacker.is_over() {
                return;
            }
            self.refill(1);
            if lends {
                self.refill(0);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A frame from one address to another, of a type for experiments.
pub fn ethernet(from: [u8; 6], to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(len, 0);
    frame
}

/// Sends some two thousand frames a second to an attacker, small and large in turn, until it is dropped.
pub struct Accomplice {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Accomplice {
    pub fn start(socket: PathBuf, attacker: [u8; 6]) -> Accomplice {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::spawn(move || {
            let mut frontend = Frontend::connect(&socket, SIZE);
            frontend.set_up(RICH, 2);
            for index in 0..SIZE {
                let len = if index % 2 == 0 { 60 } else { 1514 };
                frontend.transmit(index, NO_HEADER, &ethernet(mac(ACCOMPLICE), attacker, len));
            }
            let mut sent = SIZE;
            while !ends.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                let room = SIZE - sent.wrapping_sub(frontend.used_index(1));
                sent = sent.wrapping_add(room.min(10));
                frontend.set_available(1, sent);
                frontend.kick(1);
            }
        });
        Accomplice { over, thread: Some(thread) }
    }
}

impl Drop for Accomplice {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
