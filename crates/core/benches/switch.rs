//! Nanoseconds per frame: the switch's verdict, and packet operations (checksum, segmentation).

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fairlane_core::PortId;
use fairlane_core::packet::checksum::Sum;
use fairlane_core::packet::{Ethernet, Gso, GsoKind, Mac, Segments};
use fairlane_core::switch::{AntiSpoofing, Config, Switch};
use fairlane_core::time::Nanos;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

const PORTS: u16 = 100;

fn mac(port: u16) -> Mac {
    let [high, low] = port.to_be_bytes();
    Mac([0x52, 0x54, 0, 0, high, low])
}

fn address(port: u16) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + u32::from(port))
}

/// A 64-byte frame (60 without its check sequence) of UDP over IPv4 between two guests.
fn small(from: u16, to: u16) -> Vec<u8> {
    let mut frame = [mac(to).0, mac(from).0].concat();
    frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(address(from).octets());
    frame.extend(address(to).octets());
    frame.resize(60, 0);
    frame
}

/// One verdict for each guest in turn, after every address was learned.
fn forward(c: &mut Criterion, name: &str, anti_spoofing: impl Fn(u16) -> AntiSpoofing) {
    let mut switch = Switch::new(Config { isolate: false, seed: 0x1234_5678_9abc_def0 });
    switch.attach_uplink(PortId(PORTS.into()));
    let mut frames = Vec::new();
    for port in 0..PORTS {
        switch.attach(PortId(port.into()), anti_spoofing(port)).expect("addresses differ");
        frames.push((PortId(port.into()), small(port, (port + 7) % PORTS)));
    }
    for (from, frame) in &frames {
        switch.forward(*from, frame, Nanos(1));
    }
    let mut turn = frames.iter().cycle();
    c.bench_function(name, |b| {
        b.iter(|| {
            let (from, frame) = turn.next().expect("a cycle never ends");
            switch.forward(black_box(*from), black_box(frame), Nanos(2))
        })
    });
}

fn switch(c: &mut Criterion) {
    let frame = small(1, 2);
    c.bench_function("parse", |b| {
        b.iter(|| {
            Ethernet::new_checked(black_box(&frame)).is_ok_and(|view| view.source() == mac(1) && view.vlan() == 0)
        })
    });
    forward(c, "forward/learned", |_| AntiSpoofing::default());
    forward(c, "forward/mac", |port| AntiSpoofing { mac: Some(mac(port)), addresses: Vec::new() });
    forward(c, "forward/mac+ip", |port| AntiSpoofing {
        mac: Some(mac(port)),
        addresses: vec![IpAddr::V4(address(port))],
    });
}

fn packet(c: &mut Criterion) {
    let mut frame = small(1, 2);
    frame.resize(34, 0);
    frame[23] = 6;
    frame.resize(54, 0);
    frame[46] = 0x50;
    frame.resize(65_000, 7);
    frame[16..18].copy_from_slice(&64_986u16.to_be_bytes());
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 1448, header: 54 };

    let mut group = c.benchmark_group("bytes");
    group.throughput(Throughput::Bytes(frame.len() as u64));
    group.bench_function("sum", |b| b.iter(|| Sum::default().with(black_box(&frame)).checksum()));
    let mut out = Vec::new();
    group.bench_function("segment", |b| {
        b.iter(|| {
            let mut segments = Segments::new(black_box(&frame), gso).expect("the frame is TCP over IPv4");
            while segments.write_next(&mut out) {
                black_box(&out);
            }
        })
    });
}

criterion_group!(benches, switch, packet);
criterion_main!(benches);
