use super::*;
use crate::memory::{self, Peer};
use fairlane_core::packet::Offload;
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use proptest::prelude::*;

const ALL: Grant = Grant { bytes: u64::MAX, frames: BURST as u32 };

fn captured(file: File, snap: u32) -> (Captured, Peer) {
    let (port, peer) = memory::pair(usize::MAX);
    (Captured::start(Box::new(port), file, snap), peer)
}

fn put(port: &mut Captured, frame: &[u8], now: Nanos) {
    let mut burst = Burst::new();
    let mut filler = burst.fill();
    filler.push(frame, Offload::default());
    assert_eq!(port.put(&filler.done(), 0..1, now).accepted, 1);
    port.flush(now);
}

/// The records of a file: time, bytes kept, length on the wire.
fn read(file: &std::path::Path) -> Vec<(Nanos, Vec<u8>, u32)> {
    let mut reader = PcapReader::new(File::open(file).unwrap()).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut records = Vec::new();
    // Raw packets: the reader's checked ones wrongly refuse those that were cut.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.unwrap();
        let time = Nanos(u64::from(packet.ts_sec) * SECOND + u64::from(packet.ts_frac));
        records.push((time, packet.data.into_owned(), packet.orig_len));
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// The file holds exactly what was consumed and accepted, in order, to the nanosecond, however much was offered.
    #[test]
    fn what_passed_is_read_back(
        steps in prop::collection::vec((any::<bool>(), prop_oneof![14..2000usize, 60_000..65_550usize], 0..BURST, 0..50_000_000u64), 0..80),
        snap in prop_oneof![Just(262_144u32), 1..200u32],
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (mut port, peer) = captured(file.reopen().unwrap(), snap);
        let mut burst = Burst::new();
        let mut expected = Vec::new();
        let mut now = Nanos(0);
        for (number, (from_peer, size, consumed, pause)) in steps.into_iter().enumerate() {
            now += Nanos(pause);
            let frame = vec![number as u8; size];
            if from_peer {
                peer.send(&frame, Offload::default());
                let batch = port.offer(&mut burst, ALL, now);
                let consumed = consumed.min(batch.len());
                for index in 0..consumed {
                    let mut bytes = Vec::new();
                    batch.frame(index).read(&mut bytes);
                    expected.push((now, bytes));
                }
                port.consume(consumed);
                port.flush(now);
            } else {
                put(&mut port, &frame, now);
                expected.push((now, frame));
            }
        }
        let (_, report) = port.stop();
        let records = read(file.path());
        prop_assert_eq!(report.frames, expected.len() as u64);
        prop_assert_eq!(report.bytes, file.path().metadata().unwrap().len());
        prop_assert_eq!(report.error, None);
        prop_assert_eq!(records.len(), expected.len());
        for ((time, kept, len), (expected_time, bytes)) in records.iter().zip(&expected) {
            prop_assert_eq!(*len as usize, bytes.len());
            prop_assert_eq!(kept, &bytes[..bytes.len().min(snap as usize)]);
            prop_assert_eq!(time.since(records[0].0), expected_time.since(expected[0].0));
        }
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (mut port, peer) = captured(full, 65_536);
    for number in 0..1000 {
        put(&mut port, &[7; 1500], Nanos::from_millis(number));
    }
    let error = port.report().error.clone().expect("the disk is full");
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!((0..).take_while(|_| peer.receive().is_some()).count(), 1000);
    peer.send(&[1; 60], Offload::default());
    let (mut port, report) = port.stop();
    assert_eq!((report.frames, report.bytes), (0, 0));
    assert_eq!(port.offer(&mut Burst::new(), ALL, Nanos(0)).len(), 1, "the port works on");
}

#[test]
fn an_abandoned_capture_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (mut port, _peer) = captured(file.reopen().unwrap(), 65_536);
    put(&mut port, &[7; 100], Nanos(1));
    drop(port);
    assert_eq!(read(file.path()).len(), 1);
}
