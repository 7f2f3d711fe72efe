//! A vhost-user frontend built from a socket and a file, whose messages and ring contents can be right or wrong in
//! every byte.
#![allow(dead_code)] // each test program uses a part

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const GET_FEATURES: u32 = 1;
pub(crate) const SET_FEATURES: u32 = 2;
pub(crate) const SET_OWNER: u32 = 3;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_LOG_BASE: u32 = 6;
pub(crate) const SET_LOG_FD: u32 = 7;
pub(crate) const SET_VRING_NUM: u32 = 8;
pub(crate) const SET_VRING_ADDR: u32 = 9;
pub(crate) const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
pub(crate) const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_CALL: u32 = 13;
pub(crate) const SET_VRING_ERR: u32 = 14;
pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
pub(crate) const GET_QUEUE_NUM: u32 = 17;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
pub(crate) const SEND_RARP: u32 = 19;
pub(crate) const NET_SET_MTU: u32 = 20;
pub(crate) const ADD_MEM_REG: u32 = 37;
pub(crate) const REM_MEM_REG: u32 = 38;
pub(crate) const SET_STATUS: u32 = 39;

/// The guest's physical address of its memory, and the frontend's own.
pub(crate) const GUEST: u64 = 0x4000_0000;
pub(crate) const USER: u64 = 0x7f00_0000_0000;
pub(crate) const MEMORY: u64 = 8 << 20;
/// Where buffers begin in the memory.
pub(crate) const BUFFERS: u64 = 1 << 20;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

pub(crate) const HEADER: usize = 12;

/// Flags of a packed ring's descriptors.
pub(crate) const AVAILABLE: u16 = 1 << 7;
pub(crate) const USED: u16 = 1 << 15;

/// Feature bits: VERSION_1, protocol features, LOG_ALL, EVENT_IDX, INDIRECT_DESC, MRG_RXBUF, all guest and host
/// offloads.
pub(crate) const F_VERSION_1: u64 = 1 << 32;
pub(crate) const F_PROTOCOL: u64 = 1 << 30;
pub(crate) const F_LOG_ALL: u64 = 1 << 26;
pub(crate) const F_EVENT_IDX: u64 = 1 << 29;
pub(crate) const F_INDIRECT: u64 = 1 << 28;
pub(crate) const F_MRG_RXBUF: u64 = 1 << 15;
pub(crate) const F_GUEST_OFFLOADS: u64 = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 9;
pub(crate) const F_HOST_OFFLOADS: u64 = 1 << 0 | 1 << 11 | 1 << 12 | 1 << 13;
pub(crate) const F_PACKED: u64 = 1 << 34;
pub(crate) const F_IN_ORDER: u64 = 1 << 35;
pub(crate) const PLAIN: u64 = F_VERSION_1 | F_PROTOCOL;
pub(crate) const RICH: u64 = PLAIN | F_INDIRECT | F_MRG_RXBUF | F_GUEST_OFFLOADS | F_HOST_OFFLOADS;

/// Bytes of a log that has a bit for each page below the end of the guest's memory.
pub(crate) const LOG: u64 = (GUEST + MEMORY) / 4096 / 8;

/// A header without offloads.
pub(crate) const NO_HEADER: [u8; HEADER] = [0; HEADER];

/// A frame with recognizable contents.
pub(crate) fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// A described buffer: address in the guest's memory, length, flags and the next index.
type Described = (u64, u32, u16, u16);

/// A guest's memory and its frontend's end of the socket.
pub(crate) struct Frontend {
    pub stream: UnixStream,
    pub memory: File,
    pub kicks: Vec<EventFd>,
    pub calls: Vec<EventFd>,
    pub size: u16,
    /// Next available index and next used index of each queue.
    pub available: Vec<u16>,
    pub used: Vec<u16>,
    /// The rings are packed: their indices then count descriptors, and change the wrap counter after each round.
    pub packed: Cell<bool>,
    /// A packed queue's described buffers, which are no part of its ring before they become available; by queue and
    /// index.
    described: RefCell<HashMap<(u32, u16), Described>>,
    /// Its chains that were made available and not completed: buffer ID, which is the head's index, and descriptors.
    outstanding: Vec<VecDeque<(u16, u16)>>,
}

impl Frontend {
    /// Connects, with memory of its own and rings of this size.
    pub(crate) fn connect(path: &Path, size: u16) -> Frontend {
        Frontend::over(UnixStream::connect(path).unwrap(), file_of("guest", MEMORY, MFdFlags::empty()), size)
    }

    pub(crate) fn over(stream: UnixStream, memory: File, size: u16) -> Frontend {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let events = || (0..4).map(|_| EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()).collect();
        let (kicks, calls) = (events(), events());
        let zeros = || vec![0; 4];
        let (described, outstanding) = (RefCell::default(), vec![VecDeque::new(); 4]);
        let (available, used, packed) = (zeros(), zeros(), Cell::new(false));
        Frontend { stream, memory, kicks, calls, size, available, used, packed, described, outstanding }
    }

    /// The same guest on a new connection: memory and indices are kept.
    pub(crate) fn reconnect(self, path: &Path) -> Frontend {
        let mut again = Frontend::over(UnixStream::connect(path).unwrap(), self.memory, self.size);
        (again.available, again.used, again.outstanding) = (self.available, self.used, self.outstanding);
        (again.packed, again.described) = (self.packed, self.described);
        again
    }

    pub(crate) fn send(&self, request: u32, flags: u32, payload: &[u8], fds: &[RawFd]) {
        let mut message = Vec::new();
        [request, flags, payload.len() as u32].iter().for_each(|word| message.extend(word.to_ne_bytes()));
        message.extend(payload);
        self.send_raw(&message, fds);
    }

    pub(crate) fn send_raw(&self, message: &[u8], fds: &[RawFd]) {
        let control = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[] } else { &control[..] };
        // Some tests send to a backend that has rejected the frontend.
        let _ = sendmsg::<()>(self.stream.as_raw_fd(), &[IoSlice::new(message)], control, MsgFlags::MSG_NOSIGNAL, None);
    }

    pub(crate) fn send_longs(&self, request: u32, longs: &[u64], fds: &[RawFd]) {
        let payload: Vec<u8> = longs.iter().flat_map(|long| long.to_ne_bytes()).collect();
        self.send(request, 1, &payload, fds);
    }

    pub(crate) fn send_words(&self, request: u32, words: &[u32]) {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.send(request, 1, &payload, &[]);
    }

    /// The payload of the next reply; the backend must have had a chance to write it.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header).unwrap();
        let size = u32::from_ne_bytes(header[8..].try_into().unwrap());
        let mut payload = vec![0; size as usize];
        self.stream.read_exact(&mut payload).unwrap();
        payload
    }

    pub(crate) fn reply_long(&mut self) -> u64 {
        u64::from_ne_bytes(self.reply()[..8].try_into().unwrap())
    }

    /// Sends all messages up to running queues: features, memory, `queues` rings.
    pub(crate) fn set_up(&self, features: u64, queues: u32) {
        self.packed.set(features & F_PACKED != 0);
        self.send_longs(SET_OWNER, &[], &[]);
        self.send_longs(SET_FEATURES, &[features], &[]);
        self.send_longs(SET_PROTOCOL_FEATURES, &[1 << 3 | 1 << 15], &[]);
        self.share_memory();
        (0..queues).for_each(|queue| self.set_up_ring(queue));
    }

    pub(crate) fn share_memory(&self) {
        self.send_longs(SET_MEM_TABLE, &[1, GUEST, MEMORY, USER, 0], &[self.memory.as_raw_fd()]);
    }

    pub(crate) fn set_up_ring(&self, queue: u32) {
        self.send_words(SET_VRING_NUM, &[queue, self.size.into()]);
        self.place_ring(queue, None);
        self.send_words(SET_VRING_BASE, &[queue, if self.packed.get() { 1 << 15 } else { 0 }]);
        self.send_longs(SET_VRING_CALL, &[queue.into()], &[self.calls[queue as usize].as_raw_fd()]);
        self.send_longs(SET_VRING_KICK, &[queue.into()], &[self.kicks[queue as usize].as_raw_fd()]);
        self.send_words(SET_VRING_ENABLE, &[queue, 1]);
    }

    /// Sends where a ring is, and where the log has its used ring, if writes to it are logged.
    pub(crate) fn place_ring(&self, queue: u32, log: Option<u64>) {
        let [descriptors, available, used] = ring(queue).map(|at| USER + at);
        let index_and_flags = u64::from(queue) | u64::from(log.is_some()) << 32;
        self.send_longs(SET_VRING_ADDR, &[index_and_flags, descriptors, used, available, log.unwrap_or(0)], &[]);
    }

    /// Has all writes of the device logged, as QEMU does when a migration begins.
    pub(crate) fn log_all(&self, features: u64, queues: u32, log: &File, offset: u64) {
        self.send_longs(SET_LOG_BASE, &[LOG, offset], &[log.as_raw_fd()]);
        self.send_longs(SET_FEATURES, &[features | F_LOG_ALL], &[]);
        (0..queues).for_each(|queue| self.place_ring(queue, Some(GUEST + ring(queue)[2])));
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn read_u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at, 2).try_into().unwrap())
    }

    /// Writes descriptor `index` of a queue; `address` is relative to the start of the guest's memory.
    pub(crate) fn descriptor(&self, queue: u32, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        if self.packed.get() {
            self.described.borrow_mut().insert((queue, index), (address, len, flags, next));
            return;
        }
        self.write(ring(queue)[0] + 16 * u64::from(index), &descriptor(GUEST.wrapping_add(address), len, flags, next));
    }

    /// Makes the chain at `head` available.
    pub(crate) fn push(&mut self, queue: u32, head: u16) {
        if self.packed.get() {
            return self.push_packed(queue, head);
        }
        let index = self.available[queue as usize];
        let entry = u64::from(index % self.size);
        self.write(ring(queue)[1] + 4 + 2 * entry, &head.to_le_bytes());
        self.set_available(queue, index.wrapping_add(1));
    }

    fn push_packed(&mut self, queue: u32, head: u16) {
        let mut chain = vec![head];
        let described = self.described.borrow().clone();
        while let Some((_, _, flags, next)) = described.get(&(queue, chain[chain.len() - 1]))
            && flags & NEXT != 0
        {
            chain.push(*next);
        }
        let first = self.available[queue as usize];
        let place = |at: usize| first.wrapping_add(at as u16);
        // The first descriptor is the last to become available.
        for (at, index) in chain.iter().enumerate().rev() {
            let (address, len, flags, _) = described[&(queue, *index)];
            self.write_packed(queue, place(at), address, len, head, flags);
        }
        self.available[queue as usize] = place(chain.len());
        self.outstanding[queue as usize].push_back((head, chain.len() as u16));
    }

    /// Writes a packed ring's descriptor, available, at this number of an endless sequence.
    pub(crate) fn write_packed(&self, queue: u32, number: u16, address: u64, len: u32, id: u16, flags: u16) {
        let available = if number & self.size == 0 { AVAILABLE } else { USED };
        let place = u64::from(number % self.size);
        self.write(ring(queue)[0] + 16 * place, &descriptor(GUEST.wrapping_add(address), len, id, flags | available));
    }

    /// A packed ring's used descriptor at a number: buffer ID, length and flags.
    pub(crate) fn used_packed(&self, queue: u32, number: u16) -> Option<(u16, u32, u16)> {
        let bytes = self.read(ring(queue)[0] + 16 * u64::from(number % self.size) + 8, 8);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let used = if number & self.size == 0 { AVAILABLE | USED } else { 0 };
        let len = u32::from(half(0)) | u32::from(half(2)) << 16;
        (half(6) & (AVAILABLE | USED) == used).then_some((half(4), len, half(6)))
    }

    /// [`Frontend::completed`] of a packed queue. A used descriptor also stands for chains before its own.
    fn completed_packed(&mut self, queue: u32) -> Vec<(u32, u32)> {
        let mut done = Vec::new();
        while let Some(&(first, _)) = self.outstanding[queue as usize].front() {
            let Some((id, len, flags)) = self.used_packed(queue, self.used[queue as usize]) else { break };
            assert_eq!(flags & WRITE != 0, len > 0);
            assert!(id == first || len == 0, "a chain with a length has its own used descriptor");
            loop {
                let (head, entries) = self.outstanding[queue as usize].pop_front().expect("the chain is outstanding");
                self.used[queue as usize] = self.used[queue as usize].wrapping_add(entries);
                done.push((head.into(), len));
                if head == id {
                    break;
                }
            }
        }
        done
    }

    pub(crate) fn set_available(&mut self, queue: u32, index: u16) {
        self.available[queue as usize] = index;
        self.write(ring(queue)[1] + 2, &index.to_le_bytes());
    }

    pub(crate) fn kick(&self, queue: u32) {
        self.kicks[queue as usize].write(1).unwrap();
    }

    pub(crate) fn used_index(&self, queue: u32) -> u16 {
        self.read_u16(ring(queue)[2] + 2)
    }

    /// Chains completed since the last call: head and length.
    pub(crate) fn completed(&mut self, queue: u32) -> Vec<(u32, u32)> {
        if self.packed.get() {
            return self.completed_packed(queue);
        }
        let mut done = Vec::new();
        while self.used[queue as usize] != self.used_index(queue) {
            let entry = u64::from(self.used[queue as usize] % self.size);
            let element = self.read(ring(queue)[2] + 4 + 8 * entry, 8);
            let word = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
            done.push((word(0), word(4)));
            self.used[queue as usize] = self.used[queue as usize].wrapping_add(1);
        }
        done
    }

    /// Transmits a frame on queue 1 with descriptor `index`: header and bytes in one buffer.
    pub(crate) fn transmit(&mut self, index: u16, header: [u8; HEADER], frame: &[u8]) {
        let at = BUFFERS + u64::from(index) * 0x2000;
        self.write(at, &header);
        self.write(at + HEADER as u64, frame);
        self.descriptor(1, index, at, (HEADER + frame.len()) as u32, 0, 0);
        self.push(1, index);
    }

    /// Posts a receive buffer of `len` bytes on queue 0 with descriptor `index`.
    pub(crate) fn post_buffer(&mut self, index: u16, len: u32) {
        self.descriptor(0, index, BUFFERS + (1 << 20) + u64::from(index) * 0x2000, len, WRITE, 0);
        self.push(0, index);
    }

    /// The first `len` bytes of a receive buffer.
    pub(crate) fn received_buffer(&self, index: u32, len: u32) -> Vec<u8> {
        self.read(BUFFERS + (1 << 20) + u64::from(index) * 0x2000, len as usize)
    }
}

/// A file for a log, with all bits clear.
pub(crate) fn log_file(len: u64) -> File {
    file_of("log", len, MFdFlags::empty())
}

/// A file in memory, all zeros.
pub(crate) fn file_of(name: &str, len: u64, flags: MFdFlags) -> File {
    let file = File::from(memfd_create(name, flags).unwrap());
    file.set_len(len).unwrap();
    file
}

/// Where a queue's three parts are in the memory.
pub(crate) fn ring(queue: u32) -> [u64; 3] {
    let start = u64::from(queue) * 0x10000;
    [start, start + 0x8000, start + 0xc000]
}

pub(crate) fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(next.to_le_bytes());
    bytes
}
