//! Whole sessions of a hostile frontend, beside one endless session of an honest frontend. The input is the hostile frontend's messages,
//! descriptors, memory and kicks. The honest frontend exchanges numbered frames with a host on the uplink and frames with the hostile
//! one, and loses none of the numbered frames.
#![no_main]

#[path = "../../crates/port/tests/frontend/mod.rs"]
mod frontend;
#[allow(dead_code)] // only a part of it is used here
#[path = "../../crates/engine/tests/datapath/support.rs"]
mod support;

use fairlane_core::PortId;
use fairlane_core::packet::Offload;
use fairlane_core::sched;
use fairlane_core::sched::SchedulerKind;
use fairlane_core::switch::Config;
use fairlane_core::time::Nanos;
use fairlane_fuzz::{Message, settle};
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Key, Poller, Status, memory};
use frontend::{BUFFERS, Frontend, GUEST, HEADER, MEMORY, NO_HEADER, PLAIN, RICH, descriptor, ring};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use support::{Link, frame, mac, weight};

/// The numbers of the host on the uplink and of the frontends: their port and the last byte of their MAC address.
const HOST: u32 = 0;
const HONEST: u32 = 1;
const HOSTILE: u32 = 2;

/// Entries of the honest frontend's rings: more than its neighbour can fill in one round, because frames from the uplink wait only a
/// bounded time for a full ring.
const SLOTS: u16 = 512;
/// The most frames in flight from the honest frontend, or from the host to it.
const WINDOW: u16 = 64;
/// Bytes of each of the honest frontend's buffers.
const ROOM: u32 = 2048;
/// Frames to the host, and to the hostile frontend, in one exchange.
const FRAMES: usize = 2;

struct Bench {
    directory: tempfile::TempDir,
    link: Link,
    poller: Poller,
    honest: Frontend,
    /// The honest frontend's free transmit descriptors.
    free: Vec<u16>,
    /// The next numbers to send and to receive: from the honest frontend to the host, and back.
    sent: [u64; 2],
    arrived: [u64; 2],
    sessions: u64,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

fuzz_target!(|input: &[u8]| {
    BENCH.with_borrow_mut(|bench| {
        let Some((&start, mut input)) = input.split_first() else { return };
        let mut hostile = bench.connect_hostile();
        if start & 1 != 0 {
            hostile.set_up(if start & 2 == 0 { RICH } else { PLAIN }, 2);
        }
        bench.settle();
        while let Some((&kind, rest)) = input.split_first() {
            input = rest;
            act(kind, &mut input, &mut hostile);
            if kind & 0xc0 == 0 {
                bench.exchange();
            }
        }
        // While the hostile frontend is connected, and after it has disconnected.
        bench.exchange();
        bench.finish();
        drop(hostile);
        bench.exchange();
        bench.finish();
    });
});

/// One action of the hostile frontend: it sends a message, writes to its memory, or kicks.
fn act(kind: u8, input: &mut &[u8], hostile: &mut Frontend) {
    let mut take = |len: usize| {
        let (bytes, rest) = input.split_at(len.min(input.len()));
        *input = rest;
        let mut padded = bytes.to_vec();
        padded.resize(len, 0);
        padded
    };
    let queue = u32::from(kind >> 3 & 1);
    match kind & 7 {
        0 => {
            let Some(message) = Message::next(input) else { return };
            let files = message.files(hostile.memory.as_raw_fd(), hostile.kicks[queue as usize].as_raw_fd());
            if message.raw {
                hostile.send_raw(message.payload, &files);
            } else {
                hostile.send(message.request, message.flags, message.payload, &files);
            }
        }
        1 => {
            let [low, high, len, flags, next] = take(5)[..] else { return };
            let offset = u64::from(u16::from_le_bytes([low, high]));
            let address = if flags & 0x80 == 0 { GUEST + BUFFERS + offset } else { GUEST + MEMORY - offset % 512 };
            let len = u32::from(len) << (flags >> 4 & 7);
            let place = if flags & 8 == 0 { ring(queue)[0] } else { BUFFERS };
            let bytes = descriptor(address, len, u16::from(flags & 7), u16::from(next & 15));
            hostile.write(place + 16 * u64::from(kind >> 4 & 7), &bytes);
        }
        2 => {
            let head = u16::from(take(1)[0] & 15);
            hostile.push(queue, head);
        }
        3 => {
            let index = hostile.available[queue as usize].wrapping_add(u16::from(take(1)[0]));
            hostile.set_available(queue, index);
        }
        4 => {
            let place = take(2);
            let bytes = take(16);
            hostile.write(u64::from(u16::from_le_bytes([place[0], place[1]])) * 32, &bytes);
        }
        5 => hostile.kick(queue),
        6 => hostile.post_buffer(u16::from(take(1)[0] & 7), ROOM),
        // A frame to the honest frontend, in a valid descriptor.
        _ => {
            let len = 60 + usize::from(take(1)[0]) * 16;
            hostile.transmit(u16::from(kind >> 4 & 7), NO_HEADER, &frame(mac(HONEST), mac(HOSTILE), 0, len));
        }
    }
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let (uplink, peer) = memory::pair(256);
        let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
        let mut link = Link::with_uplink(Config::default(), scheduler, Box::new(uplink), peer);
        for number in [HONEST, HOSTILE] {
            let path = socket(&directory, number);
            link.add_port(
                number,
                weight(1),
                Box::new(VhostUser::listen(&format!("guest{number}"), &path, 1).unwrap().with_packed_rings()),
            );
        }
        let poller = Poller::new().unwrap();
        for number in [HONEST, HOSTILE] {
            link.bridge.port(PortId(number)).unwrap().register(&poller, Key(number)).unwrap();
        }
        let mut honest = Frontend::connect(&socket(&directory, HONEST), SLOTS);
        honest.set_up(PLAIN, 2);
        (0..SLOTS).for_each(|index| honest.post_buffer(index, ROOM));
        let free = (0..WINDOW).collect();
        let mut bench = Bench { directory, link, poller, honest, free, sent: [0; 2], arrived: [0; 2], sessions: 0 };
        bench.settle();
        assert_eq!(bench.status(HONEST), Status::Up);
        bench
    }

    fn status(&mut self, number: u32) -> Status {
        self.link.bridge.port(PortId(number)).unwrap().status()
    }

    /// Connects a hostile frontend.
    fn connect_hostile(&mut self) -> Frontend {
        let hostile = Frontend::connect(&socket(&self.directory, HOSTILE), 16);
        self.settle();
        hostile
    }

    /// Handles all pending events.
    fn settle(&mut self) {
        let mut ready = Vec::new();
        settle(|| {
            self.poller.wait(Nanos(0), &mut ready).unwrap();
            let count = ready.len();
            for (Key(port), number) in ready.drain(..) {
                let port = self.link.bridge.port(PortId(port)).unwrap();
                port.event(number, &self.poller, Nanos(0));
            }
            count
        });
    }

    /// Forwards all frames, and lets the honest frontend and the host receive theirs. Enables notifications in between, as a worker does.
    fn carry(&mut self) {
        self.settle();
        for _ in 0..2 {
            self.link.round();
            self.receive();
        }
        self.link.bridge.enable_notifications();
        self.link.bridge.disable_notifications();
        assert_eq!(self.status(HONEST), Status::Up);
    }

    /// Sends numbered frames in both directions, and others to the hostile frontend.
    fn exchange(&mut self) {
        for count in 0..FRAMES {
            if self.free.len() < 2 {
                break;
            }
            let next = self.sent[0];
            self.transmit(HOST, next);
            self.sent[0] += 1;
            if count % 2 == 0 {
                self.transmit(HOSTILE, 0);
            }
        }
        let host = &self.link.peers[0];
        for _ in 0..FRAMES {
            if self.sent[1] - self.arrived[1] == u64::from(WINDOW) {
                break;
            }
            host.send(&frame(mac(HONEST), mac(HOST), self.sent[1], 60), Offload::default());
            self.sent[1] += 1;
        }
        host.send(&frame(mac(HOSTILE), mac(HOST), 0, 1000), Offload::default());
        self.carry();
    }

    fn transmit(&mut self, to: u32, number: u64) {
        let index = self.free.pop().expect("the caller checked it");
        self.honest.transmit(index, NO_HEADER, &frame(mac(to), mac(HONEST), number, 200));
    }

    /// Receives the honest frontend's frames at the host, and the host's frames at the honest frontend, and checks their order.
    fn receive(&mut self) {
        while let Some((bytes, _)) = self.link.peers[0].receive() {
            self.note(&bytes, HOST);
        }
        for (head, len) in self.honest.completed(0) {
            let bytes = self.honest.received_buffer(head, len);
            self.note(&bytes[HEADER..], HONEST);
            self.honest.post_buffer(head as u16, ROOM);
        }
        let sent = self.honest.completed(1);
        self.free.extend(sent.into_iter().map(|(head, _)| head as u16));
    }

    /// Records a received frame.
    fn note(&mut self, bytes: &[u8], at: u32) {
        let (from, way) = if at == HOST { (HONEST, 0) } else { (HOST, 1) };
        if bytes[6..12] == mac(from).0 && bytes[..6] == mac(at).0 {
            assert_eq!(u64::from_be_bytes(bytes[14..22].try_into().unwrap()), self.arrived[way], "no frame is lost");
            self.arrived[way] += 1;
        }
    }

    /// Advances time until everything has arrived. A guest that receives nothing may delay that for a bounded time.
    fn finish(&mut self) {
        for _ in 0..50 {
            self.carry();
            if self.arrived == self.sent && self.free.len() == usize::from(WINDOW) {
                break;
            }
            self.link.clock.advance(Nanos::from_millis(60));
        }
        assert_eq!((self.arrived, self.free.len()), (self.sent, WINDOW.into()));
        self.sessions += 1;
        if self.sessions.is_multiple_of(1000) {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
            assert!(open < 100, "{open} descriptors are open");
        }
    }
}

fn socket(directory: &tempfile::TempDir, number: u32) -> PathBuf {
    directory.path().join(format!("guest{number}.sock"))
}
