//! A frame of arbitrary bytes: views, checksums, offloads, segmentation and the switch must not panic, and must agree with each other.
#![no_main]

use fairlane_core::PortId;
use fairlane_core::packet::{
    Arp, Checksum, Ethernet, Gso, GsoKind, Icmp, Ip, Mac, Offload, Segments, Tcp, Udp, checksum, ecn,
};
use fairlane_core::switch::{AntiSpoofing, Config, Switch};
use fairlane_core::time::Nanos;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

fuzz_target!(|input: &[u8]| {
    let Some((control, frame)) = input.split_at_checked(10) else { return };
    let field = |at: usize| u16::from_le_bytes([control[at], control[at + 1]]);
    let head = &frame[..frame.len().min(128)];
    look(head);
    let _ = checksum::verify(frame);
    let partial = Checksum::Partial { start: field(0), offset: field(2) };
    let kind = if control[4] & 1 == 0 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
    let gso = Gso { kind, ecn: control[4] & 2 != 0, size: field(5), header: field(7) };
    for gso in [None, Some(gso)] {
        let Ok(offload) = Offload::new_checked(partial, gso, frame.len(), head) else { continue };
        let Checksum::Partial { start, offset } = offload.checksum else { unreachable!("it stays what it was") };
        checksum::complete(&mut frame.to_vec(), start, offset).expect("a checked offload can be completed");
        if let Some(gso) = offload.gso {
            cut(frame, gso);
        }
    }
    ecn::mark(&mut head.to_vec());
    forward(control[9], head);
});

/// Creates every view of a head.
fn look(head: &[u8]) {
    let Ok(frame) = Ethernet::new_checked(head) else { return };
    let _ = (frame.destination(), frame.source(), frame.vlan());
    if let Ok(arp) = Arp::new_checked(frame.payload()) {
        let _ = format!("{arp:?}");
    }
    let Ok(Some(ip)) = Ip::of(&frame) else { return };
    let _ = (ip.source(), ip.destination(), ip.total_len());
    let Ok(upper) = ip.upper() else { return };
    if let Ok(tcp) = Tcp::new_checked(upper.payload) {
        let _ = tcp.options();
    }
    let _ = Udp::new_checked(upper.payload);
    let _ = Icmp::new_checked(upper.payload);
}

/// Segments a frame; the segments carry its payload and correct checksums.
fn cut(frame: &[u8], gso: Gso) {
    let Ok(mut segments) = Segments::new(frame, gso) else { return };
    let payload = frame.len() - usize::from(gso.header);
    let (mut segment, mut carried) = (Vec::new(), 0);
    while segments.write_next(&mut segment) {
        carried += segment.len() - usize::from(gso.header);
        assert!(segment.len() - usize::from(gso.header) <= usize::from(gso.size));
    }
    assert_eq!(carried, payload);
}

/// A switch with a port with a pinned MAC address, one with pinned IP addresses and a learning port; it has learned nothing yet.
fn forward(from: u8, head: &[u8]) {
    SWITCH.with_borrow_mut(|switch| {
        switch.isolate(from & 4 != 0);
        let from = PortId(u32::from(from & 3));
        for now in 0..2 {
            let _ = switch.forward(from, head, Nanos(now));
            assert!(switch.flood(from).all(|to| to != from));
        }
        if from != PINNED {
            // Attaching the port again forgets what was learned from it, in a fraction of the time that a new switch takes.
            attach(switch, from);
        }
    });
}

/// The port from which the switch does not learn.
const PINNED: PortId = PortId(1);

thread_local! {
    static SWITCH: RefCell<Switch> = RefCell::new({
        let mut switch = Switch::new(Config { isolate: false, seed: 1 });
        (0..4).for_each(|port| attach(&mut switch, PortId(port)));
        switch
    });
}

fn attach(switch: &mut Switch, port: PortId) {
    let anti_spoofing = match port.0 {
        0 => return switch.attach_uplink(port),
        _ if port == PINNED => AntiSpoofing { mac: Some(Mac([2, 0, 0, 0, 0, 1])), addresses: vec![] },
        2 => AntiSpoofing { mac: None, addresses: vec![[10, 0, 0, 1].into(), "fd00::1".parse().unwrap()] },
        _ => AntiSpoofing::default(),
    };
    switch.attach(port, anti_spoofing).unwrap();
}
