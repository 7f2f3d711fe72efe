//! A frame in the simulation: the bytes that decisions look at and that say what it is, and a length. The rest of its bytes are zero.

use crate::tcp::Segment;
use fairlane_core::packet::{Checksum, Mac, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::{BURST, Batch, Burst, Filler};

/// Bytes that are kept: all headers of a segment.
pub(crate) const KEPT: usize = 78;

/// The shortest frame.
pub(crate) const SHORTEST: u32 = 60;

/// The longest frame: a segment of 64 KiB as a guest hands it to its card, with its headers.
pub(crate) const LONGEST: u32 = 65_550;

/// An EtherType for local experiments (IEEE 802, 9.2.3).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// No frame has checksums.
const OFFLOAD: Offload = Offload { checksum: Checksum::Valid, gso: None };

/// What a frame is taken for that no flow made.
const NOTHING: Content = Content { kind: Kind::Hello, flow: 0, number: 0, answers: 0, sent: Nanos(0) };

static REST: [u8; LONGEST as usize] = [0; LONGEST as usize];

/// What a frame is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Makes an address known to a switch.
    Hello,
    /// From the flow's sender.
    Data,
    /// The same; its receiver acknowledges it at once.
    Last,
    /// Back to the sender: the answer to a request, or the acknowledgement of data.
    Answer,
    /// A stream's connection begins, and, back to the sender, its receiver agrees.
    Open,
    Opened,
    /// It ends.
    Close,
    /// Back to the sender: it is given up.
    Refused,
}

impl Kind {
    /// Whether it goes to the flow's sender.
    pub(crate) fn is_back(self) -> bool {
        matches!(self, Kind::Answer | Kind::Opened | Kind::Refused)
    }
}

/// A frame.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    kept: [u8; KEPT],
    pub len: u32,
}

/// What a frame carries, beside its addresses. A stream's frames carry a [`Segment`] and only show the like of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub kind: Kind,
    pub flow: u32,
    /// Its number in its flow. In an answer: the number up to which all data arrived.
    pub number: u32,
    /// In an answer: the number of the frame that it answers.
    pub answers: u32,
    /// When it was sent. In an answer: when the frame that it answers was.
    pub sent: Nanos,
}

impl Frame {
    pub(crate) fn new((from, to): (Mac, Mac), content: Content, len: u32) -> Frame {
        let mut kept = [0; KEPT];
        kept[..6].copy_from_slice(&to.0);
        kept[6..12].copy_from_slice(&from.0);
        kept[12..14].copy_from_slice(&ETHERTYPE);
        kept[14] = content.kind as u8;
        kept[16..20].copy_from_slice(&content.flow.to_ne_bytes());
        kept[20..24].copy_from_slice(&content.number.to_ne_bytes());
        kept[24..28].copy_from_slice(&content.answers.to_ne_bytes());
        kept[32..40].copy_from_slice(&content.sent.0.to_ne_bytes());
        Frame::of(kept, len)
    }

    /// The frame that begins with these bytes.
    pub(crate) fn of(kept: [u8; KEPT], len: u32) -> Frame {
        Frame { kept, len: len.clamp(SHORTEST, LONGEST) }
    }

    /// The frame whose first bytes and length a port was given.
    pub(crate) fn read(head: &[u8], len: u64) -> Frame {
        let mut kept = [0; KEPT];
        let bytes = head.len().min(KEPT);
        kept[..bytes].copy_from_slice(&head[..bytes]);
        Frame { kept, len: len as u32 }
    }

    /// The segment that it is, if it is one of a stream.
    pub(crate) fn segment(&self) -> Option<Segment> {
        Segment::read(&self.kept, self.len)
    }

    pub(crate) fn content(&self) -> Content {
        if self.kept[12..14] != ETHERTYPE {
            return self.segment().map_or(NOTHING, |segment| segment.content());
        }
        let kind = [Kind::Hello, Kind::Data, Kind::Last, Kind::Answer][usize::from(self.kept[14] & 3)];
        let word = |at| u32::from_ne_bytes(self.bytes(at));
        let sent = Nanos(u64::from_ne_bytes(self.bytes(32)));
        Content { kind, flow: word(16), number: word(20), answers: word(24), sent }
    }

    #[inline]
    fn bytes<const COUNT: usize>(&self, at: usize) -> [u8; COUNT] {
        let mut bytes = [0; COUNT];
        bytes.copy_from_slice(&self.kept[at..at + COUNT]);
        bytes
    }

    /// Adds it to a burst.
    fn show(&self, filler: &mut Filler<'_>) {
        let kept = &self.kept[..KEPT.min(self.len as usize)];
        filler.push_parts(kept, &REST[..self.len as usize - kept.len()], OFFLOAD);
    }
}

/// Offers as many of the frames as a budget allows.
pub(crate) fn offer<'a, 'f>(
    frames: impl Iterator<Item = &'f Frame>,
    budget: Budget,
    burst: &'a mut Burst,
) -> Batch<'a> {
    let mut filler = burst.fill();
    let mut bytes = 0;
    for frame in frames.take(BURST.min(budget.frames as usize)) {
        if bytes >= budget.bytes {
            break;
        }
        bytes += u64::from(frame.len);
        frame.show(&mut filler);
    }
    filler.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_what_it_carries() {
        let content = Content { kind: Kind::Last, flow: 7, number: 1 << 30, answers: 9, sent: Nanos(1 << 50) };
        let (from, to) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let frame = Frame::new((from, to), content, 1514);
        let again = Frame::read(&frame.kept, 1514);
        assert_eq!((again.content(), &again.kept[..6], again.len), (content, &to.0[..], 1514));
        assert_eq!(Frame::new((from, to), content, 1).len, SHORTEST);
    }
}
