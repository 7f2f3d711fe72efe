//! What an uplink's queues have in common: the kernel fills them by destination, and they are read in turn. So what a flood for one
//! guest costs there is that guest's, and those' whose frames share its queue.
//!
//! Left alone, the kernel chooses by flow, and a flood of many flows, or one that a guest answers, shares queues with others.

/// Where a frame has the last four bytes of its destination's address, whose remainder is the queue's number. The last bytes differ
/// where addresses are given in turn, and where they are random.
pub(crate) const LAST_BYTES: i32 = 2;

/// The most queues that are read in turn.
pub(crate) const MOST: usize = 32;

/// The bits of that many.
pub(crate) const ALL: u32 = u32::MAX;

/// The most frames that are read from a queue before the next one's turn, if there is another that may have frames.
const SHARE: usize = 8;

/// Reads from queues in turn, at most [`MOST`], beginning with `turn`, until there are `missing` frames or none has more: those of
/// them that may have frames, a bit for each. Returns whose turn is next. `read` gets a queue and a number of frames, and returns how
/// many it read: fewer if the queue has no more, and none to end before there are as many.
#[inline]
pub(crate) fn read(
    queues: usize,
    mut may_have_more: u32,
    mut turn: usize,
    mut missing: usize,
    mut read: impl FnMut(usize, usize) -> Option<usize>,
) -> usize {
    while missing > 0 && may_have_more != 0 {
        let ahead = may_have_more >> turn;
        turn =
            if ahead != 0 { turn + ahead.trailing_zeros() as usize } else { may_have_more.trailing_zeros() as usize };
        let most = if may_have_more.is_power_of_two() { missing } else { missing.min(SHARE) };
        match read(turn, most) {
            None => missing = 0,
            Some(count) => {
                missing -= count;
                if count < most {
                    may_have_more &= !(1 << turn);
                }
            }
        }
        turn = if turn + 1 < queues { turn + 1 } else { 0 };
    }
    turn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_alone_may_have_frames_is_read_at_once() {
        let mut asked = Vec::new();
        let next = read(5, 1 << 3, 4, 32, |queue, most| {
            asked.push((queue, most));
            Some(most)
        });
        assert_eq!((next, asked), (4, vec![(3, 32)]));
    }

    #[test]
    fn each_queue_has_its_turn_however_full_another_is() {
        let mut waiting = [0, 100, 3, 0, 9];
        let mut asked = [0; 5];
        let mut take = |turn, missing| {
            let mut order = Vec::new();
            let next = read(5, ALL >> (MOST - 5), turn, missing, |queue, most| {
                asked[queue] += 1;
                let count = waiting[queue].min(most);
                waiting[queue] -= count;
                order.extend(std::iter::repeat_n(queue, count));
                Some(count)
            });
            (next, order)
        };
        let runs = |order: &[usize]| order.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect::<Vec<_>>();
        let (next, order) = take(0, 32);
        assert_eq!(runs(&order), [(1, 8), (2, 3), (4, 8), (1, 8), (4, 1), (1, 4)]);
        assert_eq!(next, 2);
        let (next, order) = take(next, 1);
        assert_eq!((next, runs(&order)), (2, vec![(1, 1)]));
        assert_eq!(take(next, 0), (2, Vec::new()));
        assert_eq!(take(next, 200).1, [1; 79]);
        // An empty queue is asked once each time.
        assert_eq!((asked[0], asked[3]), (3, 3));
    }

    /// A queue whose frame was the last one loses its turn, and no other does.
    #[test]
    fn a_reader_that_ends_leaves_the_next_queue_its_turn() {
        let mut asked = Vec::new();
        let next = read(5, ALL >> (MOST - 5), 1, 32, |queue, _| {
            asked.push(queue);
            (queue < 3).then_some(0)
        });
        assert_eq!((next, asked), (4, vec![1, 2, 3]));
    }
}
