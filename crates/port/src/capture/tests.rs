use super::*;
use crate::Status;
use crate::memory::{self, Peer};
use fairlane_core::packet::Offload;
use fairlane_core::time::SECOND;
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

/// A port under capture whose file has no limit.
fn captured(file: File, snap: u32) -> (Captured, Recording, Peer) {
    limited(file, snap, u64::MAX)
}

fn limited(file: File, snap: u32, limit: u64) -> (Captured, Recording, Peer) {
    let (port, peer) = memory::pair(usize::MAX);
    let (recorder, recording) = start(file, snap, limit).unwrap();
    (Captured::new(Box::new(port), recorder), recording, peer)
}

/// Ends a capture whose file is writable.
fn end(port: Captured, recording: Recording) -> (Box<dyn Port>, Report) {
    let port = port.stop();
    (port, recording.end(Instant::now() + Duration::from_secs(60)))
}

fn put(port: &mut Captured, frame: &[u8], now: Nanos) {
    let mut burst = Burst::new();
    let mut filler = burst.fill();
    filler.push(frame, Offload::default());
    assert_eq!(port.put(&filler.done(), 0..1, now).accepted, 1);
    port.flush(now);
}

/// The records of a file: time, bytes stored, length on the wire.
fn read(file: impl Read) -> Vec<(Nanos, Vec<u8>, u32)> {
    let mut reader = PcapReader::new(file).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut records = Vec::new();
    // Raw packets: the reader's checked ones wrongly refuse truncated packets.
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
    fn consumed_and_accepted_frames_are_read_back(
        steps in prop::collection::vec((any::<bool>(), prop_oneof![14..2000usize, 60_000..65_550usize], 0..BURST, 0..50_000_000u64), 0..80),
        snap in prop_oneof![Just(262_144u32), 1..200u32],
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (mut port, recording, peer) = captured(file.reopen().unwrap(), snap);
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
        let (_, report) = end(port, recording);
        let records = read(file.as_file());
        let (frames, bytes) = (expected.len() as u64, file.path().metadata().unwrap().len());
        prop_assert_eq!(report, Report { frames, bytes, left_out: 0, ended: None });
        prop_assert_eq!(records.len(), expected.len());
        for ((time, stored, len), (expected_time, bytes)) in records.iter().zip(&expected) {
            prop_assert_eq!(*len as usize, bytes.len());
            prop_assert_eq!(stored, &bytes[..bytes.len().min(snap as usize)]);
            prop_assert_eq!(time.since(records[0].0), expected_time.since(expected[0].0));
        }
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (mut port, recording, peer) = captured(full, 65_536);
    for number in 0..1000 {
        put(&mut port, &[7; 1500], Nanos::from_millis(number));
    }
    assert_eq!((0..).take_while(|_| peer.receive().is_some()).count(), 1000);
    peer.send(&[1; 60], Offload::default());
    let (mut port, report) = end(port, recording);
    assert_eq!((report.frames, report.bytes), (0, 0));
    let error = report.ended.expect("the disk is full");
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(port.offer(&mut Burst::new(), ALL, Nanos(0)).len(), 1, "the port continues");
}

#[test]
fn an_abandoned_capture_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (mut port, recording, _peer) = captured(file.reopen().unwrap(), 65_536);
    put(&mut port, &[7; 100], Nanos(1));
    drop(port);
    assert_eq!(recording.end(Instant::now() + Duration::from_secs(60)).ended, None);
    assert_eq!(read(file.as_file()).len(), 1);
}

/// A pipe's ends, as files.
fn pipe() -> (File, File) {
    let (reader, writer) = io::pipe().unwrap();
    (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)))
}

#[test]
fn a_file_that_blocks_does_not_block_the_port() {
    const FRAMES: u64 = 20_000; // 30 MB
    let (reader, writer) = pipe();
    let (mut port, recording, peer) = captured(writer, 65_536);
    for number in 0..FRAMES {
        put(&mut port, &[7; 1500], Nanos::from_millis(number));
        assert!(peer.receive().is_some());
    }
    let port = port.stop();
    let report = recording.end(Instant::now() + Duration::from_millis(100));
    assert_eq!(report.ended.as_deref(), Some("writing its file blocks"));
    assert_eq!((report.frames, report.left_out), (0, FRAMES));
    assert_eq!(port.status(), Status::Up);
    drop(reader);
}

#[test]
fn frames_without_room_are_left_out_and_all_others_are_whole() {
    const FRAMES: u64 = 20_000;
    let (mut reader, writer) = pipe();
    let (mut port, recording, peer) = captured(writer, 65_536);
    let mut pass = |now: Nanos| {
        for _ in 0..FRAMES {
            put(&mut port, &[7; 1500], now);
            assert!(peer.receive().is_some());
        }
    };
    pass(Nanos(1));
    let (half_read, half_was_read) = channel();
    let read_on = std::thread::spawn(move || {
        let mut bytes = vec![0; 8 << 20];
        reader.read_exact(&mut bytes).unwrap();
        half_read.send(()).unwrap();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    // Half of the memory is free again.
    half_was_read.recv().unwrap();
    pass(Nanos(SECOND));
    let (_, report) = end(port, recording);
    let bytes = read_on.join().unwrap();
    let records = read(&bytes[..]);
    assert!(records.iter().all(|(_, bytes, len)| bytes == &[7; 1500] && *len == 1500));
    assert_eq!((report.frames, report.bytes), (records.len() as u64, bytes.len() as u64));
    assert_eq!((report.frames + report.left_out, report.ended), (2 * FRAMES, None));
    let first = records.iter().filter(|record| record.0 == records[0].0).count() as u64;
    assert!(first < FRAMES, "there are 16 MiB for 30");
    assert!(first < report.frames, "later frames find room again");
}

#[test]
fn a_file_at_its_limit_ends_the_capture_with_whole_records() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (mut port, recording, peer) = limited(file.reopen().unwrap(), 65_536, 10 << 10);
    for _ in 0..100 {
        put(&mut port, &[7; 1000], Nanos(1));
    }
    // A later, smaller frame is not written either.
    put(&mut port, &[7; 60], Nanos(2));
    assert_eq!((0..).take_while(|_| peer.receive().is_some()).count(), 101);
    let (_, report) = end(port, recording);
    // The header, and ten records of a frame and 16 bytes.
    let ended = Some("its file reached the limit of 10KiB".to_owned());
    assert_eq!(report, Report { frames: 10, bytes: 24 + 10 * 1016, left_out: 0, ended });
    assert_eq!(file.path().metadata().unwrap().len(), report.bytes);
    assert_eq!(read(file.as_file()).len(), 10);
}

const FRAME: [u8; 100] = [7; 100];

/// The size of a file with so many records of that frame.
fn bytes(records: u64) -> u64 {
    24 + records * 116
}

/// Another process goes on with the file where this one left it, to the same limit. If it ends, this one goes on, and what the other
/// one wrote, which may end within a record, is gone.
#[test]
fn another_process_goes_on_with_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let append = File::options().append(true).open(file.path()).unwrap();
    let (mut port, recording, _peer) = limited(append, 65_536, bytes(4));
    put(&mut port, &FRAME, Nanos(1));
    put(&mut port, &FRAME, Nanos(2));
    let leave = |port: &mut Captured, recording: &Recording| {
        port.rest();
        let keeper = recording.leave(Instant::now() + Duration::from_secs(60)).unwrap();
        let (recorder, recording) = go_on(keeper.take().unwrap(), || {}).unwrap();
        (Captured::new(Box::new(memory::pair(usize::MAX).0), recorder), recording)
    };
    let (mut second, of_second) = leave(&mut port, &recording);
    put(&mut second, &FRAME, Nanos(3));
    let (_, report) = end(second, of_second);
    assert_eq!(report, Report { frames: 3, bytes: bytes(3), left_out: 0, ended: None });
    assert_eq!(read(file.as_file()).len(), 3);

    File::options().append(true).open(file.path()).unwrap().write_all(&[0; 10]).unwrap();
    recording.take_back();
    assert_eq!(file.path().metadata().unwrap().len(), bytes(2));
    put(&mut port, &FRAME, Nanos(4));

    let (mut third, of_third) = leave(&mut port, &recording);
    put(&mut third, &FRAME, Nanos(5));
    put(&mut third, &FRAME, Nanos(6));
    let limit = |report: Report| {
        let ended = Some(format!("its file reached the limit of {}", fairlane_policy::units::format_size(bytes(4))));
        assert_eq!(report, Report { frames: 4, bytes: bytes(4), left_out: 0, ended });
    };
    let (third, of_third) = leave(&mut third, &of_third);
    limit(end(third, of_third).1);
    let records = read(File::open(file.path()).unwrap());
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|(_, stored, _)| stored == &FRAME));
}

/// What cannot be gone on with ends the capture, and says so.
#[test]
fn a_capture_that_cannot_be_left_ends() {
    let soon = || Instant::now() + Duration::from_secs(60);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (mut port, recording, _peer) = captured(full, 65_536);
    port.rest();
    let (_, recording) = go_on(recording.leave(soon()).unwrap().take().unwrap(), || {}).unwrap();
    assert!(recording.so_far().ended.is_some_and(|why| why.contains("No space left on device")));

    let (_reader, writer) = pipe();
    let (mut port, recording, _peer) = captured(writer, 65_536);
    (0..1000).for_each(|number| put(&mut port, &[7; 1500], Nanos(number)));
    port.rest();
    let kept = recording.leave(Instant::now()).unwrap().take().unwrap();
    let damaged = Kept { bytes: kept.bytes[..39].to_vec(), files: vec![kept.files[0].try_clone().unwrap()] };
    let (_, recording) = go_on(kept, || {}).unwrap();
    assert_eq!(recording.so_far().ended.as_deref(), Some("writing its file blocks"));
    assert!(go_on(damaged, || {}).is_err());

    let (port, recording, _peer) = captured(tempfile::tempfile().unwrap(), 65_536);
    drop(port);
    assert!(recording.leave(soon()).is_err(), "its vif is gone");
}
