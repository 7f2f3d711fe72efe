//! Early ack: the daemon's own, on a simulated stream's segments.

use crate::support::{scenario, traffic};
use fairlane_core::time::Nanos;
use fairlane_sim::Tally;
use fairlane_sim::scenario::{Cpu, Place, Source};

/// Transfers of 100 KB to a guest that shares its CPU, to one that has early ack as well, and to one with a CPU of its own.
fn transfers(anew: bool, loss: f64) -> Vec<Tally> {
    let mut scenario = scenario(&["", "early_ack = true", ""]);
    (scenario.seconds, scenario.hosts[0].link.rate) = (20.0, None);
    let millis = Nanos::from_millis;
    for guest in &mut scenario.guests[..2] {
        guest.cpu = Cpu::turns(&[millis(30), millis(60)], Nanos(0)).unwrap();
    }
    let source = Source::Transfer { bytes: 100_000, pause: millis(200), anew, window: 6 << 20 };
    scenario.traffic = (0..3).map(|guest| traffic(source, Place::Outside, Place::Guest(guest))).collect();
    scenario.traffic.iter_mut().for_each(|traffic| traffic.loss = loss);
    fairlane_sim::run(&scenario).expect("it can be simulated").tallies
}

#[test]
fn a_sender_does_not_notice_that_its_receiver_waits() {
    let tallies = transfers(false, 0.0);
    let [plain, early, alone] = [0, 1, 2].map(|index: usize| tallies[index].trips.mean());
    assert!(plain > 5.0 * alone && early < 1.5 * alone, "{plain} {early} {alone}");
    // Its data do not arrive earlier than the guest runs.
    let received = tallies[1].received.mean();
    assert!(received > 3.0 * early && received < 1.2 * tallies[0].received.mean(), "{received}");
}

#[test]
fn every_transfer_arrives_on_a_path_that_loses() {
    for anew in [false, true] {
        for (index, tally) in transfers(anew, 0.01).iter().enumerate() {
            let (sent, received) = (tally.trips.len(), tally.received.len());
            assert!(sent > 20 && sent.abs_diff(received) <= 1, "{anew} {index}: {sent} {received}");
            assert!(tally.reset == 0 && tally.retransmitted > 0, "{anew} {index}: {}", tally.reset);
        }
    }
}
