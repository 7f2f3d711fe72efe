//! Where a packed queue goes on after a backend that ended without a word.
//!
//! The USED bits of the descriptors say it. Only devices change them: when a device completes an entry, it makes the bit
//! equal to the round's wrap counter, and a driver that makes the entry available in the next round leaves it as it is
//! (virtio 1.2, section 2.8.1). So the bits have one value up to where the device stopped and the other from there on,
//! provided that *each* completed descriptor gets its bit, also those in the middle of a chain or a batch. Other backends
//! do not mark these, so behind another backend a queue is found only if its chains have one descriptor in the ring.
//!
//! The frontend does not know it: QEMU keeps where the queue began when its backend connected. Nor is there a place in the
//! guest's memory to note it: while no backend is connected, QEMU (7.2) writes to the device area, and completes what the
//! guest sends, from where *it* believes the device is up to the last available entry. The entries that it skipped are
//! completed here: their frames are lost, as are those that QEMU completed. Likewise a publication that was not finished:
//! its first descriptor is written last.

use super::chain::NEXT;
use super::{Chain, Descriptor, Format, Ordering, Packed, Word, Words};

impl<A: Words> Packed<A> {
    /// Begins after the last entry that a device completed, and completes what is still available before it.
    pub(super) fn resume(&mut self) {
        let end = self.places.driver((0..self.size()).map(|place| self.word(place, 1).load(Ordering::Acquire)));
        // From where the driver is back over all that waits.
        let waits = |entry: &u16| !self.places.is_completed(self.word(*entry, 1).load(Ordering::Relaxed), *entry);
        let waiting = (1..=self.size()).map(|back| end.wrapping_sub(back)).take_while(waits).count();
        let start = end.wrapping_sub(waiting as u16);
        (self.next, self.published) = (start.wrapping_sub(self.size()), start.wrapping_sub(self.size()));
        while self.next != start {
            match self.look(0) {
                Some(found) => {
                    let chain = self.skipped(found, start);
                    self.complete(chain, 0);
                    self.publish();
                }
                None => self.next = self.next.wrapping_add(1),
            }
            self.published = self.next;
        }
    }

    /// The chain at the first entry, whose descriptor is `found`. It ends before `end`.
    fn skipped(&self, found: u64, end: u16) -> Chain {
        let (mut last, mut entries) = (Descriptor::parse(found), 1);
        while last.flags & NEXT != 0 && self.next.wrapping_add(entries) != end {
            last = Descriptor::parse(self.word(self.next.wrapping_add(entries), 1).load(Ordering::Relaxed));
            entries += 1;
        }
        Chain { id: last.id, entries }
    }
}
