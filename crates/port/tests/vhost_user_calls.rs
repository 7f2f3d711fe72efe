//! When the driver is notified: once a burst, if it asks for that, and less often if the notification is not urgent.

mod frontend;

use fairlane_core::packet::Offload;
use fairlane_core::time::Nanos;
use fairlane_port::memory;
use fairlane_port::{Sink, Source};
use frontend::*;
use proptest::prelude::*;
use tempfile::TempDir;

/// The queues' `NOTIFICATION_INTERVAL`.
const NOTIFICATION_INTERVAL: Nanos = Nanos::from_micros(200);

/// [`frontend::connected`] with the first notifications consumed.
fn connected(features: u64, size: u16) -> (TempDir, Backend, Frontend) {
    let (dir, _, backend, frontend) = frontend::connected(features, size);
    (0..2).for_each(|queue| assert_eq!(calls(&frontend, queue), 1));
    (dir, backend, frontend)
}

fn calls(frontend: &Frontend, queue: usize) -> u64 {
    frontend.calls[queue].read().unwrap_or(0)
}

#[test]
fn one_notification_a_burst_and_none_if_suppressed() {
    let (_dir, mut backend, mut frontend) = connected(RICH, 8);
    (0..3).for_each(|seed| frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 80)));
    backend.take();
    assert_eq!(calls(&frontend, 1), 1);
    frontend.write(ring(1)[1], &1u16.to_le_bytes()); // VRING_AVAIL_F_NO_INTERRUPT
    frontend.transmit(3, NO_HEADER, &frame(3, 80));
    backend.take();
    assert_eq!(calls(&frontend, 1), 0);
}

#[test]
fn with_event_idx_notifications_come_at_the_requested_index() {
    let (_dir, mut backend, mut frontend) = connected(RICH | F_EVENT_IDX, 8);
    let used_event = ring(1)[1] + 4 + 2 * 8;
    frontend.write(used_event, &2u16.to_le_bytes());
    for (seed, expected) in [(0, 0), (1, 0), (2, 1), (3, 0)] {
        frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 80));
        backend.take();
        assert_eq!(calls(&frontend, 1), expected, "after frame {seed}");
    }
}

/// Takes the waiting frames; returns when to flush again.
fn take(backend: &mut Backend, now: Nanos) -> Nanos {
    let taken = backend.port.offer(&mut backend.burst, ALL_FRAMES, now).len();
    backend.port.consume(taken);
    backend.port.flush(now)
}

fn set_used_event(frontend: &Frontend, queue: u32, index: u16) {
    frontend.write(ring(queue)[1] + 4 + 2 * u64::from(frontend.size), &index.to_le_bytes());
}

#[test]
fn a_second_notification_is_delayed() {
    let (_dir, mut backend, mut frontend) = connected(RICH, 16);
    frontend.transmit(0, NO_HEADER, &frame(0, 80));
    assert_eq!((take(&mut backend, Nanos(0)), calls(&frontend, 1)), (Nanos::NEVER, 1));
    frontend.transmit(1, NO_HEADER, &frame(1, 80));
    assert_eq!((take(&mut backend, Nanos(1000)), calls(&frontend, 1)), (NOTIFICATION_INTERVAL, 0));
    assert_eq!(frontend.used_index(1), 2, "completions are published even so");
    assert_eq!(
        (backend.port.flush(Nanos(NOTIFICATION_INTERVAL.0 - 1)), calls(&frontend, 1)),
        (NOTIFICATION_INTERVAL, 0)
    );
    assert_eq!((backend.port.flush(NOTIFICATION_INTERVAL), calls(&frontend, 1)), (Nanos::NEVER, 1));
}

#[test]
fn a_notification_of_half_the_queue_is_not_delayed() {
    let (_dir, mut backend, mut frontend) = connected(RICH, 16);
    frontend.transmit(0, NO_HEADER, &frame(0, 80));
    take(&mut backend, Nanos(0));
    calls(&frontend, 1);
    for index in 1..9 {
        assert_eq!(calls(&frontend, 1), 0, "before frame {index}");
        frontend.transmit(index, NO_HEADER, &frame(0, 80));
        take(&mut backend, Nanos(index.into()));
    }
    assert_eq!(calls(&frontend, 1), 1);
}

#[test]
fn a_polling_driver_is_not_notified_later() {
    let (_dir, mut backend, mut frontend) = connected(RICH | F_EVENT_IDX, 16);
    frontend.transmit(0, NO_HEADER, &frame(0, 80));
    take(&mut backend, Nanos(0));
    calls(&frontend, 1);
    set_used_event(&frontend, 1, 1);
    frontend.transmit(1, NO_HEADER, &frame(1, 80));
    assert_eq!(take(&mut backend, Nanos(10)), NOTIFICATION_INTERVAL);
    set_used_event(&frontend, 1, 2);
    assert_eq!((backend.port.flush(Nanos(20)), calls(&frontend, 1)), (Nanos::NEVER, 0));
}

#[test]
fn a_received_frame_is_notified_at_once_unless_in_bulk() {
    let (_dir, mut backend, mut frontend) = connected(RICH, 128);
    (0..128).for_each(|index| frontend.post_buffer(index, 1600));
    let mut put = |bytes: usize, now: Nanos| {
        let (mut source, peer) = memory::pair(1);
        peer.send(&frame(0, bytes), Offload::default());
        let batch = source.offer(&mut backend.burst, ALL_FRAMES, now);
        assert_eq!(backend.port.put(&batch, 0..1, now).refusal, None);
        (backend.port.flush(now) != Nanos::NEVER, calls(&frontend, 0))
    };
    for small in 0..20 {
        assert_eq!(put(100, Nanos(small)), (false, 1), "small frame {small}");
    }
    let held: Vec<bool> = (0..12).map(|large| put(1500, Nanos(100 + large)).0).collect();
    assert!(!held[0] && held[11], "16 KiB in less than 200 us are bulk: {held:?}");
    assert_eq!(put(100, Nanos::from_millis(10)), (false, 1), "the first after a pause");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the driver does, no request is forgotten: an entry that it named is notified within the time that a
    /// notification may be delayed, as long as the port is flushed when it asks for that.
    #[test]
    fn every_request_is_met_in_time(steps in prop::collection::vec((0u16..6, 1u64..150_000, any::<bool>()), 1..60)) {
        let (_dir, mut backend, mut frontend) = connected(RICH | F_EVENT_IDX, 16);
        let mut now = Nanos(0);
        let mut again = Nanos::NEVER;
        // The entry that the driver asks to be notified of, while it sleeps.
        let mut awaited = Some(0);
        let mut completed: Option<Nanos> = None;
        let (mut sent, mut called) = (0u16, 0);
        for (frames, pause, looks) in steps {
            for _ in 0..frames {
                frontend.transmit(sent % 16, NO_HEADER, &frame(0, 80));
                sent = sent.wrapping_add(1);
            }
            let end = now + Nanos(pause);
            if frames > 0 {
                again = take(&mut backend, now);
                if awaited.is_some_and(|entry| entry < sent) {
                    completed = completed.or(Some(now));
                }
            }
            while again <= end {
                now = again;
                again = backend.port.flush(now);
            }
            now = end;
            called += calls(&frontend, 1);
            let late = completed.is_some_and(|since| now.since(since) > NOTIFICATION_INTERVAL);
            prop_assert!(called > 0 || !late, "{awaited:?} was completed at {completed:?} and not notified at {now:?}");
            if called > 0 || looks {
                // The driver wakes, or polls by itself, sees all there is and sleeps again.
                frontend.completed(1);
                set_used_event(&frontend, 1, sent);
                (awaited, completed, called) = (Some(sent), None, 0);
            }
        }
    }
}
