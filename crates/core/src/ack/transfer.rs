//! Exports the guest's flows with their copies to another backend, and imports them (rule 10).
//!
//! The format, version 4, little-endian: `FLACK`, the version in 1 byte, the number of flows in 4 bytes; for each flow
//! its fields in the order of [`write`], the number of retained bytes in 4 bytes, and the bytes.

use super::flags::Flags;
use super::handshake::SCALE;
use super::machine::State;
use super::pool::Chain;
use super::segment::{Key, Link};
use super::sequence::Seq;
use super::watch::is_old;
use super::{EarlyAck, Flow, are_near};
use crate::time::Nanos;

/// The format version that is written, and the only one that is read.
pub const VERSION: u8 = 4;

const NAME: &[u8; 5] = b"FLACK";

/// Why an import failed; no flow was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Not an export of flows.
    #[error("not an export of flows: it must begin with FLACK")]
    Foreign,
    /// Another format version.
    #[error("the export has version {0}, but only version {VERSION} can be read")]
    Version(u8),
    /// Truncated, or followed by more bytes.
    #[error("the export is truncated or has extra bytes at byte {0}: it must be transferred whole")]
    Length(usize),
    /// An invalid field.
    #[error("flow {flow}: {field} is invalid")]
    Field {
        /// The flow's index in the export, from 0.
        flow: u32,
        /// The field.
        field: &'static str,
    },
    /// No room for a flow, or it exists already.
    #[error("flow {0} cannot be added: the table or the pool is full, or the flow exists already")]
    Full(u32),
}

impl EarlyAck<'_> {
    /// Exports all flows that are open or draining. The guest must be paused, and this table must not be used once it
    /// runs elsewhere. Data that arrives meanwhile is not acknowledged early, as no export would have it. If the guest
    /// continues here after all, early ack resumes as soon as it consumes or sends a frame.
    pub fn export(&mut self) -> Vec<u8> {
        self.freeze();
        let is_exported = |flow: &&Flow| {
            !matches!(flow.state(), State::Free | State::Opening | State::EndToEnd) && !flow.has(Flags::RESET)
        };
        let mut out = NAME.to_vec();
        out.push(VERSION);
        out.extend((self.flows.iter().filter(is_exported).count() as u32).to_le_bytes());
        for flow in self.flows.iter().filter(is_exported) {
            write(flow, is_old(flow, &self.guest), &mut out);
            out.extend(flow.retained().to_le_bytes());
            self.pool.copy(flow.chain, flow.start, flow.retained() as usize, &mut out);
        }
        out
    }

    /// Freezes all flows. Each has a flag of its own, for a process that resumes them.
    fn freeze(&mut self) {
        for at in self.known_flows() {
            self.flows[at].flags.set(Flags::FROZEN);
            self.timers.remove(at as u32);
        }
        self.guest.freeze();
    }

    /// Ends the freeze of all flows.
    #[cold]
    pub(super) fn thaw(&mut self, now: Nanos) {
        self.guest.frozen = false;
        for at in self.known_flows() {
            self.flows[at].flags.clear(Flags::FROZEN);
            if self.flows[at].owes() {
                self.flows[at].deadline = self.flows[at].deadline.max(now.0);
                self.schedule(at);
            }
        }
    }

    /// Imports flows from an export. Returns how many.
    ///
    /// # Errors
    /// The export is invalid or does not fit; then nothing was imported.
    pub fn import(&mut self, export: &[u8], now: Nanos) -> Result<u32, ImportError> {
        let mut taken = Vec::new();
        let result = self.import_all(export, now, &mut taken);
        if result.is_err() {
            taken.into_iter().for_each(|at| self.remove(at));
        }
        result
    }

    fn import_all(&mut self, export: &[u8], now: Nanos, taken: &mut Vec<usize>) -> Result<u32, ImportError> {
        let mut reader = Reader { bytes: export, at: 0 };
        if reader.array::<5>() != Ok(*NAME) {
            return Err(ImportError::Foreign);
        }
        let version = reader.u8()?;
        if version != VERSION {
            return Err(ImportError::Version(version));
        }
        let count = reader.u32()?;
        for number in 0..count {
            let mut flow = read(&mut reader).map_err(|fault| fault.of(number))?;
            let len = reader.u32()?;
            let bytes = reader.take(len as usize)?;
            if flow.has(Flags::LEARNS) {
                // The number is old and will be learned again.
                flow.delivered = if len == 0 { flow.start } else { flow.delivered }.latest(flow.guest_ack);
            }
            check(&flow, len).map_err(|field| ImportError::Field { flow: number, field })?;
            flow.next = flow.start.plus(len);
            (flow.deadline, flow.resend) = (now.0, flow.guest_ack);
            // As in a flow that is resumed.
            flow.advertised = flow.acked;
            let retained = self.guest.retained + u64::from(len);
            if self.find(&flow.key).is_some() || retained > self.config.guest_bytes {
                return Err(ImportError::Full(number));
            }
            // The flow owes nothing until its copies are stored.
            let without_copies = Flow { next: flow.start, acked: flow.guest_ack, ..flow };
            let at = self.insert(without_copies, now).ok_or(ImportError::Full(number))?;
            taken.push(at);
            let mut chain = Chain::EMPTY;
            if !self.pool.append(at as u32, &mut chain, flow.start, bytes) {
                return Err(ImportError::Full(number));
            }
            self.guest.retained = retained;
            let entry = &mut self.flows[at];
            (entry.chain, entry.next) = (chain, flow.next);
            entry.acked = flow.acked;
            if flow.owes() {
                self.schedule(at);
            }
        }
        if reader.at == export.len() { Ok(count) } else { Err(ImportError::Length(reader.at)) }
    }
}

/// Checks that the numbers of a flow with `len` retained bytes are consistent; else returns the invalid field.
fn check(flow: &Flow, len: u32) -> Result<(), &'static str> {
    let next = flow.start.plus(len);
    if len >= 1 << 30 || !are_near(flow.start, flow.guest_ack) || flow.start.before(flow.guest_ack) {
        return Err("the range of retained bytes");
    }
    if flow.acked.before(flow.guest_ack) || (flow.owes() && (flow.start != flow.guest_ack || flow.acked.after(next))) {
        return Err("the acknowledged sequence number");
    }
    if next.after(flow.delivered) || !are_near(flow.delivered, flow.guest_ack) {
        return Err("the delivered sequence number");
    }
    // Deliveries are counted up to the edge, and must be consistent in the next export.
    if !are_near(flow.edge, flow.guest_ack) {
        return Err("the guest's window");
    }
    Ok(())
}

/// The flags that are valid on another backend.
fn portable(flags: Flags) -> Flags {
    flags.without(Flags::TRANSIENT).without(Flags::FROZEN)
}

/// Writes a flow's fields; `learns` sets the flag that its numbers must be learned again.
fn write(flow: &Flow, learns: bool, out: &mut Vec<u8>) {
    let Key { outside, inside, outside_port, inside_port, link } = flow.key;
    out.extend(outside);
    out.extend(inside);
    out.extend(outside_port.to_le_bytes());
    out.extend(inside_port.to_le_bytes());
    out.extend(link.to_le_bytes());
    out.extend([flow.state, flow.scale, flow.sender_scale, flow.fallback]);
    let flags = portable(flow.flags);
    let flags = if learns { flags.with(Flags::LEARNS) } else { flags };
    out.extend(flags.bits().to_le_bytes());
    for number in [
        flow.guest_ack,
        flow.acked,
        flow.edge,
        flow.start,
        flow.delivered,
        flow.guest_next,
        flow.sender_ack,
        flow.recover,
    ] {
        out.extend(number.0.to_le_bytes());
    }
    for number in [flow.guest_stamp, flow.sender_stamp, flow.sender_echo, flow.largest_window] {
        out.extend(number.to_le_bytes());
    }
    out.extend(flow.sender_window.to_le_bytes());
    out.extend(flow.mss.to_le_bytes());
    for link in [flow.inbound_link, flow.outbound_link] {
        out.push(link.bytes().len() as u8);
        out.extend(link.bytes());
    }
}

/// Reads what [`write`] wrote.
fn read(reader: &mut Reader<'_>) -> Result<Flow, Fault> {
    let key = Key {
        outside: reader.array()?,
        inside: reader.array()?,
        outside_port: reader.u16()?,
        inside_port: reader.u16()?,
        link: reader.u32()?,
    };
    let [state, scale, sender_scale, fallback] = reader.array()?;
    let state = State::from_number(state).filter(|state| !matches!(state, State::Opening | State::EndToEnd));
    let mut flow = Flow::new(key);
    flow.state = state.ok_or(Fault::Field("the state"))? as u8;
    (flow.scale, flow.sender_scale, flow.fallback) = (scale, sender_scale, fallback);
    flow.flags = portable(Flags::from_bits(reader.u16()?));
    if scale.max(sender_scale) > SCALE {
        return Err(Fault::Field("the window scale"));
    }
    for number in [
        &mut flow.guest_ack,
        &mut flow.acked,
        &mut flow.edge,
        &mut flow.start,
        &mut flow.delivered,
        &mut flow.guest_next,
        &mut flow.sender_ack,
        &mut flow.recover,
    ] {
        *number = Seq(reader.u32()?);
    }
    for number in [&mut flow.guest_stamp, &mut flow.sender_stamp, &mut flow.sender_echo, &mut flow.largest_window] {
        *number = reader.u32()?;
    }
    (flow.sender_window, flow.mss) = (reader.u16()?, reader.u16()?);
    if !(1..=8960).contains(&flow.mss) {
        return Err(Fault::Field("the maximum segment size"));
    }
    for link in [&mut flow.inbound_link, &mut flow.outbound_link] {
        let len = reader.u8()?;
        let bytes = reader.take(len.into())?;
        if !matches!(len, 12 | 16 | 20) {
            return Err(Fault::Field("the Ethernet header"));
        }
        *link = Link::new(bytes, bytes.len() + 2);
    }
    Ok(flow)
}

/// A fault in a flow being read.
enum Fault {
    Length(usize),
    Field(&'static str),
}

impl Fault {
    fn of(self, flow: u32) -> ImportError {
        match self {
            Fault::Length(at) => ImportError::Length(at),
            Fault::Field(field) => ImportError::Field { flow, field },
        }
    }
}

/// The export is truncated at this byte.
#[derive(Debug, PartialEq)]
struct Short(usize);

impl From<Short> for ImportError {
    fn from(short: Short) -> ImportError {
        ImportError::Length(short.0)
    }
}

impl From<Short> for Fault {
    fn from(short: Short) -> Fault {
        Fault::Length(short.0)
    }
}

/// Bytes being read.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let taken = self.bytes[self.at..].get(..len).ok_or(Short(self.bytes.len()))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        Ok(self.take(N)?.try_into().expect("take returns N bytes"))
    }

    fn u8(&mut self) -> Result<u8, Short> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }
}
