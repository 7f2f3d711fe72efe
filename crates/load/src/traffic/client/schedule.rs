//! When requests are due. Time is an argument: nanoseconds since the start.

/// The requests of one thread.
#[derive(Clone, Debug)]
pub enum Schedule {
    /// Closed loop: one is due as soon as there is a connection for it.
    Closed,
    /// Open loop: one is due every `gap` nanoseconds, whatever became of those before.
    Open {
        /// When the first is due.
        first: f64,
        /// From one to the next.
        gap: f64,
        /// Those that were taken.
        taken: u64,
    },
}

impl Schedule {
    /// The part of thread `thread` of `threads` in `rate` requests a second over all, evenly between each other's.
    pub fn new(rate: Option<f64>, thread: usize, threads: usize) -> Schedule {
        match rate {
            None => Schedule::Closed,
            Some(rate) => {
                let gap = 1e9 / rate;
                Schedule::Open { first: gap * thread as f64, gap: gap * threads as f64, taken: 0 }
            }
        }
    }

    /// Takes the next request if it is due by `now`; answers when it was meant to begin.
    pub fn take(&mut self, now: u64) -> Option<u64> {
        let due = self.due(now);
        if let (Some(_), Schedule::Open { taken, .. }) = (due, self) {
            *taken += 1;
        }
        due
    }

    fn due(&self, now: u64) -> Option<u64> {
        self.next().map_or(Some(now), |next| (next <= now).then_some(next))
    }

    /// When the next request is due; none in closed loop.
    pub fn next(&self) -> Option<u64> {
        match self {
            Schedule::Closed => None,
            Schedule::Open { first, gap, taken } => Some((first + gap * *taken as f64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However long a thread was held up, what was meant to be sent by now is due, each at its own time; threads
        /// together keep the rate.
        #[test]
        fn nothing_is_forgotten(rate in 1.0..1e6f64, threads in 1usize..5, now in 0u64..20_000_000) {
            let mut times: Vec<u64> = (0..threads)
                .flat_map(|thread| {
                    let mut schedule = Schedule::new(Some(rate), thread, threads);
                    std::iter::from_fn(move || schedule.take(now))
                })
                .collect();
            times.sort();
            let expected = now as f64 * rate / 1e9;
            // A time in whole nanoseconds is up to one earlier than the exact one.
            let rounding = rate / 1e9 + expected * 1e-6;
            prop_assert!((times.len() as f64 - expected).abs() <= 1.0 + rounding);
            for pair in times.windows(2) {
                prop_assert!(((pair[1] - pair[0]) as f64 - 1e9 / rate).abs() <= 2.0);
            }
        }
    }

    #[test]
    fn a_closed_loop_is_always_due() {
        let mut schedule = Schedule::new(None, 0, 1);
        assert_eq!((schedule.take(5), schedule.take(5), schedule.next()), (Some(5), Some(5), None));
    }
}
