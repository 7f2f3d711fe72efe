//! A port around another port, whose peer it shares.

use crate::{Batch, Burst, Control, Key, Limit, Poller, Port, Put, Room, Sink, Source, Status, Wanted, Withheld};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::Drops;
use fairlane_core::time::Nanos;
use std::io;
use std::ops::Range;

/// A port around another. Its [`Control`] is the inner port's, except for the methods here, so a wrapper cannot forget
/// one.
pub trait Wrapper {
    /// The inner port.
    type Inner: Control + ?Sized;

    /// The inner port.
    fn inner(&self) -> &Self::Inner;

    /// The inner port, mutably.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// [`Control::enable_notifications`] of the wrapper.
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        self.inner_mut().enable_notifications(wanted)
    }

    /// [`Control::next_event`] of the wrapper.
    fn next_event(&self) -> Nanos {
        self.inner().next_event()
    }

    /// [`Control::set_rate`] of the wrapper.
    fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        self.inner_mut().set_rate(rate, now);
    }
}

impl<W: Wrapper> Control for W {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        Wrapper::enable_notifications(self, wanted)
    }

    fn disable_notifications(&mut self) {
        self.inner_mut().disable_notifications();
    }

    fn wakes(&self) -> bool {
        self.inner().wakes()
    }

    fn next_event(&self) -> Nanos {
        Wrapper::next_event(self)
    }

    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        self.inner_mut().register(poller, key)
    }

    fn event(&mut self, number: u32, poller: &Poller, now: Nanos) {
        self.inner_mut().event(number, poller, now);
    }

    fn is_message(&self, number: u32) -> bool {
        self.inner().is_message(number)
    }

    fn set_messages_enabled(&mut self, messages: bool) {
        self.inner_mut().set_messages_enabled(messages);
    }

    fn let_go(&mut self) {
        self.inner_mut().let_go();
    }

    fn take_back(&mut self) {
        self.inner_mut().take_back();
    }

    fn withheld(&self) -> Withheld {
        self.inner().withheld()
    }

    fn status(&self) -> Status {
        self.inner().status()
    }

    fn lost(&self) -> Drops {
        self.inner().lost()
    }

    fn limit(&self) -> Option<Limit> {
        self.inner().limit()
    }

    fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        Wrapper::set_rate(self, rate, now);
    }
}

/// A boxed port is a wrapper too, so wrappers need no second form for it.
impl<P: Port + ?Sized> Wrapper for Box<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        self
    }

    fn inner_mut(&mut self) -> &mut P {
        self
    }
}

impl<P: Port + ?Sized> Source for Box<P> {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        (**self).offer(burst, budget, now)
    }

    fn consume(&mut self, frames: usize) {
        (**self).consume(frames);
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        (**self).waiting(now)
    }

    fn more(&mut self, notify: bool) -> bool {
        (**self).more(notify)
    }
}

impl<P: Port + ?Sized> Sink for Box<P> {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        (**self).put(batch, frames, now)
    }

    fn room(&mut self, now: Nanos) -> Room {
        (**self).room(now)
    }

    fn ring(&self) -> Ring {
        (**self).ring()
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        (**self).flush(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{self, Captured};
    use crate::drain::Drain;
    use crate::fault::{Faults, Faulty};
    use crate::paced::Paced;
    use fairlane_core::stats::DropReason;

    /// A port whose answers differ from every other port's.
    struct Odd(Drain, Option<bool>);

    impl Source for Odd {
        fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
            self.0.offer(burst, budget, now)
        }
        fn consume(&mut self, frames: usize) {
            self.0.consume(frames);
        }
        fn waiting(&mut self, _now: Nanos) -> bool {
            true
        }
    }

    impl Sink for Odd {
        fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
            self.0.put(batch, frames, now)
        }
        fn room(&mut self, _now: Nanos) -> Room {
            Room::Now
        }
        fn ring(&self) -> Ring {
            Ring { waiting: 3, taken: 5 }
        }
        fn flush(&mut self, _now: Nanos) -> Nanos {
            Nanos(7)
        }
    }

    impl Control for Odd {
        fn enable_notifications(&mut self, wanted: Wanted) -> bool {
            wanted.frames
        }
        fn next_event(&self) -> Nanos {
            Nanos(11)
        }
        fn register(&mut self, _poller: &Poller, _key: Key) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn is_message(&self, number: u32) -> bool {
            number == 13
        }
        fn let_go(&mut self) {
            self.1 = Some(false);
        }
        fn take_back(&mut self) {
            self.1 = self.1.map(|_| true);
        }
        fn withheld(&self) -> Withheld {
            Withheld { sent: true, received: false }
        }
        fn status(&self) -> Status {
            if self.1 == Some(true) { Status::Waiting } else { Status::Disabled("odd".to_owned()) }
        }
        fn lost(&self) -> Drops {
            let mut lost = Drops::default();
            lost.add(DropReason::Injected, 17);
            lost
        }
        fn limit(&self) -> Option<Limit> {
            Some(Limit { rate: 19, burst: 23 })
        }
    }

    /// A bridge gets the inner port's answers through any wrapper.
    #[test]
    fn wrappers_hide_nothing_of_the_port_inside() {
        let odd = || Odd(Drain::new(), None);
        let none = Faults::default();
        let (recorder, _recording) = capture::start(tempfile::tempfile().unwrap(), 100, 1 << 20).unwrap();
        let wrapped: [Box<dyn Port>; 4] = [
            Box::new(Box::new(odd())),
            Box::new(Paced::new(odd(), 0, 1 << 20, true)),
            Box::new(Faulty::new(odd(), 1, none, none)),
            Box::new(Captured::new(Box::new(odd()), recorder)),
        ];
        let poller = Poller::new().unwrap();
        for mut port in wrapped {
            assert_eq!(port.limit(), Some(Limit { rate: 19, burst: 23 }));
            assert_eq!(port.status(), Status::Disabled("odd".to_owned()));
            assert_eq!(port.withheld(), Withheld { sent: true, received: false });
            assert_eq!(port.lost().get(DropReason::Injected), 17);
            assert_eq!((port.is_message(13), port.is_message(14)), (true, false));
            assert_eq!(Control::next_event(&port), Nanos(11));
            assert_eq!((port.ring(), port.flush(Nanos(0))), (Ring { waiting: 3, taken: 5 }, Nanos(7)));
            assert!(
                port.waiting(Nanos(0))
                    && Control::enable_notifications(&mut port, Wanted { frames: true, room: false })
            );
            assert!(port.register(&poller, Key(0)).is_err());
            port.let_go();
            port.take_back();
            assert_eq!(port.status(), Status::Waiting);
        }
    }
}
