//! A stream: its sender and its receiver, and the segments between them.

use crate::frame::{Frame, Kind};
use crate::receiver::Receiver;
use crate::sender::{Send, Sender};
use crate::tcp::{self, Segment};
use crate::window::{Congestion, Window};
use fairlane_core::packet::Mac;
use fairlane_core::time::Nanos;

/// Both ends of a stream.
pub(crate) struct Stream {
    flow: u32,
    /// Addresses of both.
    macs: (Mac, Mac),
    /// Bytes of data in each segment.
    payload: u32,
    pub sender: Sender,
    receiver: Receiver,
    /// The number of the sender's connection, and of the receiver's.
    connection: u16,
    received: u16,
}

impl Stream {
    /// A stream of a flow, in frames of so many bytes, with at most `window` bytes in flight and so many to send.
    pub(crate) fn new(
        flow: u32,
        macs: (Mac, Mac),
        frame: u32,
        (window, congestion): (u64, Congestion),
        bytes: Option<u64>,
    ) -> Stream {
        let payload = frame.max(tcp::SHORTEST) - tcp::HEADERS;
        let window = window.clamp(payload.into(), tcp::LARGEST_WINDOW);
        let supply = bytes.map(|bytes| segments(bytes, payload));
        let (sender, receiver) = (Sender::new(supply, Window::new(congestion)), Receiver::new(window));
        Stream { flow, macs, payload, sender, receiver, connection: 1, received: 0 }
    }

    /// Has so many bytes to send, on a connection of its own or on the present one.
    pub(crate) fn add(&mut self, bytes: u64, anew: bool, now: Nanos) {
        if anew {
            self.connection = self.connection.checked_add(1).unwrap_or(1);
        }
        self.sender.add(segments(bytes, self.payload), anew, now);
    }

    /// Whether the receiver has all that the sender has had to send.
    pub(crate) fn is_received(&self) -> bool {
        self.received == self.connection && self.sender.supply.is_some_and(|supply| self.receiver.expected() >= supply)
    }

    /// The next frame, if the sender may send one now.
    pub(crate) fn send(&mut self, now: Nanos) -> Option<Frame> {
        let (kind, number) = match self.sender.send(now)? {
            Send::Open => (Kind::Open, None),
            Send::Segment(number, false) => (Kind::Data, Some(number)),
            Send::Segment(number, true) => (Kind::Last, Some(number)),
        };
        let sequence = number.map_or(0, |number| self.sequence(number));
        Some(self.frame(kind, sequence, number.map_or(0, |_| self.payload), now))
    }

    /// The end of the sender's connection.
    pub(crate) fn close(&self, now: Nanos) -> Frame {
        self.frame(Kind::Close, self.sequence(self.sender.oldest()), 0, now)
    }

    fn frame(&self, kind: Kind, sequence: u32, payload: u32, now: Nanos) -> Frame {
        let segment = Segment {
            kind,
            flow: self.flow,
            connection: self.connection,
            sequence,
            acknowledgement: u32::from(kind != Kind::Open),
            window: u16::MAX.into(),
            stamps: (Segment::stamp(now), 0),
            selective: None,
            payload,
        };
        segment.frame(self.macs, self.payload)
    }

    /// A segment arrives at the receiver. Returns its answer.
    pub(crate) fn receive(&mut self, segment: &Segment, now: Nanos) -> Option<Frame> {
        if segment.kind == Kind::Open && segment.connection != self.received {
            self.received = segment.connection;
            self.receiver.open();
        }
        if segment.connection != self.received {
            return None;
        }
        let before = self.receiver.expected();
        let number = self.number(segment.sequence.wrapping_add(segment.payload), before).wrapping_sub(1);
        let answers = match segment.kind {
            Kind::Open | Kind::Close => true,
            // Parts of a segment, but the last one.
            _ if self.sequence(number.wrapping_add(1)) != segment.sequence.wrapping_add(segment.payload) => false,
            kind => self.receiver.receive(number, self.payload, kind == Kind::Last),
        };
        let expected = self.receiver.expected();
        let is_ahead = segment.payload > 0 && number.wrapping_sub(expected) as i32 >= 0;
        let answer = Segment {
            kind: if segment.kind == Kind::Open { Kind::Opened } else { Kind::Answer },
            flow: self.flow,
            connection: self.received,
            sequence: u32::from(segment.kind != Kind::Open),
            acknowledgement: self.sequence(expected).wrapping_add(u32::from(segment.kind == Kind::Close)),
            window: self.receiver.window(),
            stamps: (Segment::stamp(now), segment.stamps.0),
            selective: is_ahead.then(|| (self.sequence(number), self.sequence(number + 1))),
            payload: 0,
        };
        answers.then(|| answer.frame((self.macs.1, self.macs.0), self.payload))
    }

    /// An answer arrives at the sender.
    pub(crate) fn answer(&mut self, segment: &Segment, now: Nanos) {
        if segment.connection != self.connection {
            return;
        }
        let sent = Segment::time(segment.stamps.1, now);
        if segment.kind == Kind::Opened {
            self.sender.opened(sent, now);
        }
        let before = self.number(segment.acknowledgement, self.sender.oldest());
        self.sender.allow(before.saturating_add((segment.window / u64::from(self.payload)) as u32));
        if segment.kind == Kind::Answer {
            let named = segment.selective.map(|(start, _)| self.number(start, before));
            self.sender.answer(before, named, sent, now);
        }
    }

    /// The sequence number of a segment.
    fn sequence(&self, number: u32) -> u32 {
        number.wrapping_mul(self.payload).wrapping_add(1)
    }

    /// The number of the segment at a sequence number that is near a number's.
    fn number(&self, sequence: u32, near: u32) -> u32 {
        let distance = sequence.wrapping_sub(self.sequence(near)) as i32;
        near.saturating_add_signed(distance.div_euclid(self.payload as i32))
    }
}

/// How many segments bytes make.
fn segments(bytes: u64, payload: u32) -> u32 {
    u32::try_from(bytes.div_ceil(payload.into())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::VecDeque;

    const MACS: (Mac, Mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));

    fn segment(frame: &Frame) -> Segment {
        frame.segment().expect("a stream's frames are segments")
    }

    proptest! {
        /// Over a path that loses any of the segments and answers, everything arrives, on each of several connections, and the sender
        /// keeps to the receiver's window.
        #[test]
        fn everything_arrives(seed: u64, loss in 0.0..0.5, window in 1000u64..50_000, bytes in 1u64..300_000, anew: bool,
                              congestion in prop::sample::select(&[Congestion::Reno, Congestion::Cubic, Congestion::Bbr][..])) {
            let mut stream = Stream::new(7, MACS, 1066, (window, congestion), Some(0));
            let mut random = StdRng::seed_from_u64(seed);
            let mut is_lost = || random.random::<f64>() < loss;
            let (mut now, mut path) = (Nanos(0), VecDeque::new());
            for transfer in 0..3 {
                stream.add(bytes, anew && transfer > 0, now);
                for _ in 0..100_000 {
                    now += Nanos::from_micros(100);
                    while let Some(frame) = stream.send(now) {
                        let sent = segment(&frame);
                        if sent.payload > 0 {
                            let beyond = stream.number(sent.sequence, stream.receiver.expected());
                            let edge = stream.receiver.expected() + (stream.receiver.window() / 1000) as u32;
                            prop_assert!(beyond <= edge.max(1), "{beyond} is beyond {edge}");
                        }
                        if !is_lost() {
                            path.push_back(sent);
                        }
                    }
                    match path.pop_front() {
                        Some(sent) => {
                            if let Some(answer) = stream.receive(&sent, now).filter(|_| !is_lost()) {
                                stream.answer(&segment(&answer), now);
                            }
                        }
                        None => match stream.sender.timeout(now) {
                            Some(at) => {
                                now = now.max(at);
                                stream.sender.expire(now);
                            }
                            None => break,
                        },
                    }
                }
                prop_assert!(stream.sender.is_done() && stream.is_received(), "{} of {bytes}", stream.sender.oldest());
            }
        }
    }

    #[test]
    fn a_loss_halves_the_window_once() {
        let mut stream = Stream::new(0, MACS, 1066, (1 << 20, Congestion::Reno), None);
        let open = segment(&stream.send(Nanos(0)).unwrap());
        let opened = segment(&stream.receive(&open, Nanos(1)).unwrap());
        stream.answer(&opened, Nanos(1));
        let at = |millis| Nanos::from_millis(millis);
        let sent: Vec<Segment> = std::iter::from_fn(|| stream.send(at(1))).map(|frame| segment(&frame)).collect();
        assert_eq!(
            sent.iter().map(|sent| stream.number(sent.sequence, 0)).collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        // They were sent one after another.
        for (sent, millis) in sent[2..].iter().zip(2..) {
            let sent = Segment { stamps: (Segment::stamp(at(millis)), 0), ..*sent };
            let answer = segment(&stream.receive(&sent, at(20)).unwrap());
            stream.answer(&answer, at(20));
        }
        let again = segment(&stream.send(at(21)).unwrap());
        assert_eq!((stream.number(again.sequence, 0), stream.sender.retransmitted), (0, 1));
        assert!((5.0..8.0).contains(&stream.sender.window()), "{}", stream.sender.window());
    }
}
