//! Several processes with one card.

use super::super::memory::{Layout, RECEIVE};
use super::super::open::over;
use super::*;
use crate::store::Stored;
use std::os::fd::OwnedFd;

/// The card's descriptors, for another process.
fn copies(card: &Xdp) -> Vec<OwnedFd> {
    card._sockets.fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
}

/// A card of another process, which has copies of the descriptors.
pub(super) fn successor(card: &Xdp) -> Xdp {
    // In any order.
    let fds = copies(card).into_iter().rev().collect();
    let (sockets, mapped) = Sockets::of(fds, card.memory.layout).expect("they are of this card");
    over("fl0", find("fl0").unwrap(), sockets.into(), mapped, None).unwrap()
}

/// Two processes have the card in turns, and the second is killed each time. Frames from the wire wait for whoever is next, and no
/// frame that was published is lost or passes twice, in either direction, while the rings go round.
#[test]
fn processes_that_have_the_card_in_turns_lose_nothing() {
    in_namespace(|| {
        let mut first = pair();
        let (socket, port) = listener();
        let mut burst = Burst::new();
        let (mut arrived, mut taken, mut sent) = (0u32, 0u32, 0u32);
        for turn in 0..40 {
            let mut second = (turn % 2 > 0).then(|| successor(&first));
            let card = second.as_mut().unwrap_or(&mut first);
            for _ in 0..150 {
                socket.send_to(&arrived.to_be_bytes(), "10.9.0.2:9").unwrap();
                arrived += 1;
            }
            // Some of what arrives is left for the next one, and what it is to give back too.
            for _ in 0..500 {
                if arrived - taken <= 70 {
                    break;
                }
                let batch = card.offer(&mut burst, ALL, Nanos(0));
                let frames = batch.len();
                for frame in batch.frames().filter(|frame| frame.head()[36..38] == 9u16.to_be_bytes()) {
                    assert_eq!(frame.head()[42..46], taken.to_be_bytes());
                    taken += 1;
                }
                card.consume(frames);
                if frames == 0 {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            assert!(arrived - taken <= 70, "{arrived} arrived, and {taken} were taken");
            let mut put_one = |number: u32| {
                let (frame, offload) = datagram(port, &number.to_be_bytes());
                assert_eq!(put(card, &frame, offload).accepted, 1);
            };
            (0..90).for_each(|more| put_one(sent + more));
            if turn % 4 < 2 {
                card.let_go();
            } else {
                card.transmit.send(card.queues[0].as_fd()).unwrap();
            }
            if let Some(killed) = &mut second {
                let (frame, offload) = datagram(port, &u32::MAX.to_be_bytes());
                assert_eq!(put(killed, &frame, offload).accepted, 1);
            }
            for _ in 0..90 {
                let mut bytes = [0; 4];
                socket.recv(&mut bytes).unwrap();
                assert_eq!(bytes, sent.to_be_bytes());
                sent += 1;
            }
            if second.take().is_some() {
                first.take_back();
            }
        }
        take(&mut first, 14, 9, (arrived - taken) as usize);
        // All of the memory is in use still.
        flood(&mut Card::open("eth0").unwrap(), RECEIVE);
        take(&mut first, 14, 700, RECEIVE as usize);
        assert!(first.transmit.has(TRANSMIT, &first.memory));
        assert_eq!(first.lost().total(), 0);
    });
}

/// Descriptors of another card, or not all of them, are not used.
#[test]
fn sockets_of_another_card_are_not_gone_on_with() {
    in_namespace(|| {
        let card = pair();
        let right = card.memory.layout;
        let is_used = |fds, layout| Sockets::of(fds, layout).is_some();
        assert!(is_used(copies(&card), right));
        for wrong in [
            Layout { index: right.index + 1, ..right },
            Layout { address: GUEST, ..right },
            Layout { queues: right.queues + 1, ..right },
            Layout { size: 2 * right.size, ..right },
        ] {
            assert!(!is_used(copies(&card), wrong), "{wrong:?}");
        }
        for index in 0..copies(&card).len() {
            let mut fds = copies(&card);
            fds.remove(index);
            assert!(!is_used(fds, right), "without descriptor {index}");
        }
        let mut fds = copies(&card);
        fds[0] = UdpSocket::bind("10.9.0.1:0").unwrap().into();
        assert!(!is_used(fds, right));
        ip("link del fl0");
        assert!(!is_used(copies(&card), right), "the interface is gone");
    });
}

/// What a former process reported as missed is not reported again, and what it did not is.
#[test]
fn frames_that_were_missed_are_reported_once() {
    in_namespace(|| {
        let card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let reports = |card: &Xdp, missed: u64| {
            let is_missed = |_| {
                std::thread::sleep(Duration::from_millis(10));
                card.lost().total() >= missed
            };
            assert!((0..500).any(is_missed) && card.lost().total() == missed, "{:?}", card.lost());
        };
        flood(&mut wire, RECEIVE + 100);
        reports(&card, 100);
        flood(&mut wire, 50);
        reports(&card, 150);
        flood(&mut wire, 30);
        let second = successor(&card);
        reports(&second, 30);
        flood(&mut wire, 20);
        reports(&second, 50);
    });
}
