//! The schedule of requests. Time is an argument: nanoseconds since the start.

/// The schedule of one thread's requests.
#[derive(Clone, Debug)]
pub(super) enum Schedule {
    /// Closed loop: a request is due as soon as a connection is free.
    Closed,
    /// Open loop: a request is due every `gap` nanoseconds, independent of earlier ones.
    Open {
        /// When the first request is due.
        first: f64,
        /// The time from one request to the next.
        gap: f64,
        /// The number of requests taken so far.
        taken: u64,
    },
}

impl Schedule {
    /// The share of thread `thread` of `threads` in a total of `rate` requests per second; the threads' requests are interleaved
    /// evenly.
    pub(super) fn new(rate: Option<f64>, thread: usize, threads: usize) -> Schedule {
        match rate {
            None => Schedule::Closed,
            Some(rate) => {
                let gap = 1e9 / rate;
                Schedule::Open { first: gap * thread as f64, gap: gap * threads as f64, taken: 0 }
            }
        }
    }

    /// Takes the next request if it is due by `now`; returns the time it was due.
    pub(super) fn take(&mut self, now: u64) -> Option<u64> {
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
    pub(super) fn next(&self) -> Option<u64> {
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
        /// After any delay of a thread, every request scheduled until now is due, each at its own time; together the threads keep the
        /// rate.
        #[test]
        fn no_request_is_skipped(rate in 1.0..1e6f64, threads in 1usize..5, now in 0u64..20_000_000) {
            let mut times: Vec<u64> = (0..threads)
                .flat_map(|thread| {
                    let mut schedule = Schedule::new(Some(rate), thread, threads);
                    std::iter::from_fn(move || schedule.take(now))
                })
                .collect();
            times.sort();
            let expected = now as f64 * rate / 1e9;
            // Times are rounded down to whole nanoseconds.
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
