//! A port with what a worker owns: a burst and a poller.
#![allow(dead_code)] // each test program uses a part

use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::{Burst, Frame, Key, Poller, Port, Put, Source, memory};
use std::time::{Duration, Instant};

pub(crate) const ALL_FRAMES: Budget = Budget { bytes: u64::MAX, frames: 32 };

pub(crate) struct Worker<P> {
    pub port: P,
    pub poller: Poller,
    pub burst: Box<Burst>,
}

impl<P: Port> Worker<P> {
    pub(crate) fn new(mut port: P) -> Worker<P> {
        let poller = Poller::new().unwrap();
        port.register(&poller, Key(0)).unwrap();
        Worker { port, poller, burst: Burst::new() }
    }

    /// Handles the events that are ready, or arrive within this time. Returns how many.
    pub(crate) fn handle(&mut self, timeout: Nanos) -> usize {
        let mut ready = Vec::new();
        self.poller.wait(timeout, &mut ready).unwrap();
        for (_, number) in &ready {
            self.port.event(*number, &self.poller, Nanos(0));
        }
        ready.len()
    }

    /// Handles events until the port satisfies `right`, for half a minute at most.
    #[track_caller]
    pub(crate) fn until(&mut self, right: impl Fn(&P) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !right(&self.port) {
            // Events may be there all the time, while the port waits for another thread.
            assert!(Instant::now() < end, "the port is still {:?}", self.port.status());
            self.handle(Nanos::from_millis(5));
        }
    }

    /// Handles all present events, including those of everything that a frontend of this process has sent.
    pub(crate) fn settle(&mut self) {
        while self.handle(Nanos(0)) > 0 {}
    }

    /// Takes and consumes the frames that the guest transmitted.
    pub(crate) fn take(&mut self) -> Vec<(Vec<u8>, Offload)> {
        let batch = self.port.offer(&mut self.burst, ALL_FRAMES, Nanos(0));
        let frames: Vec<_> = batch.frames().map(|frame| (bytes(&frame), frame.offload())).collect();
        self.port.consume(frames.len());
        self.port.flush(Nanos(0));
        frames
    }

    /// Puts one frame for the guest.
    pub(crate) fn put(&mut self, frame: &[u8], offload: Offload) -> Put {
        let (mut source, peer) = memory::pair(1);
        peer.send(frame, offload);
        let batch = source.offer(&mut self.burst, ALL_FRAMES, Nanos(0));
        let put = self.port.put(&batch, 0..1, Nanos(0));
        self.port.flush(Nanos(0));
        put
    }
}

pub(crate) fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.read(&mut bytes);
    bytes
}
