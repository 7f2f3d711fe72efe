//! Tests of each rule of the switch, and of all together against a naive model.

use super::*;
use crate::packet::testing::{arp, ethernet, ipv4, ipv6, udp};
use crate::packet::{NEIGHBOUR_ADVERTISEMENT, ethertype, protocol};
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const UPLINK: PortId = PortId(0);
const A: PortId = PortId(1);
const B: PortId = PortId(2);
const C: PortId = PortId(3);
const START: Nanos = Nanos(5);

fn mac(last: u16) -> Mac {
    let [high, low] = last.to_be_bytes();
    Mac([0x52, 0x54, 0, 0, high, low])
}

fn frame(destination: Mac, source: Mac) -> Vec<u8> {
    ethernet(destination, source, &[], 0x88b5, &[0; 46])
}

/// An uplink and three guests.
fn switch(isolate: bool, anti_spoofing: impl Fn(PortId) -> AntiSpoofing) -> Switch {
    let mut switch = Switch::new(Config { isolate, seed: 7 });
    switch.attach_uplink(UPLINK);
    for port in [A, B, C] {
        switch.attach(port, anti_spoofing(port)).unwrap();
    }
    switch
}

fn open() -> Switch {
    switch(false, |_| AntiSpoofing::default())
}

fn pinned_mac(port: PortId) -> AntiSpoofing {
    AntiSpoofing { mac: Some(mac(port.0 as u16)), addresses: Vec::new() }
}

#[test]
fn learns_and_forgets() {
    let mut switch = open();
    assert_eq!(switch.forward(A, &frame(mac(2), mac(1)), START), Verdict::Flood);
    assert_eq!(switch.forward(B, &frame(mac(1), mac(2)), START), Verdict::To(A));
    let later = START + Nanos::from_millis(299_999);
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), later), Verdict::To(A));
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), START + AGEING), Verdict::Flood);
    switch.forward(A, &frame(mac(2), mac(1)), later);
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), START + AGEING), Verdict::To(A), "a frame refreshes");
}

#[test]
fn vlans_are_learned_independently() {
    let mut switch = open();
    let tagged = |to: u16, from: u16, tags: &[u16]| ethernet(mac(to), mac(from), tags, 0x88b5, &[0; 46]);
    switch.forward(A, &tagged(9, 1, &[5]), START);
    switch.forward(B, &tagged(9, 1, &[6, 5]), START);
    assert_eq!(switch.forward(C, &tagged(1, 3, &[5]), START), Verdict::To(A));
    assert_eq!(switch.forward(C, &tagged(1, 3, &[6]), START), Verdict::To(B));
    assert_eq!(switch.forward(C, &tagged(1, 3, &[]), START), Verdict::Flood);
}

#[test]
fn an_address_moves_when_another_port_sends_from_it() {
    let mut switch = open();
    switch.forward(A, &frame(mac(9), mac(1)), START);
    switch.forward(B, &frame(mac(9), mac(1)), START);
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), START), Verdict::To(B));
    switch.detach(A);
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), START), Verdict::To(B), "A no longer has the address");
    switch.detach(B);
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), START), Verdict::To(UPLINK), "the only port to flood to");
}

#[test]
fn multicast_floods_and_nothing_returns_to_its_sender() {
    let mut switch = open();
    for group in [Mac::BROADCAST, Mac([0x33, 0x33, 0, 0, 0, 1])] {
        assert_eq!(switch.forward(A, &frame(group, mac(1)), START), Verdict::Flood);
    }
    assert_eq!(switch.flood(A).collect::<Vec<_>>(), [UPLINK, B, C]);
    let dropped = Verdict::Drop(DropReason::NoDestination);
    assert_eq!(switch.forward(A, &frame(mac(1), mac(4)), START), dropped, "hairpin");
    assert_eq!(switch.forward(A, &frame(Mac([1, 0x80, 0xc2, 0, 0, 0]), mac(1)), START), dropped, "spanning tree");
    assert_eq!(switch.forward(PortId(99), &frame(mac(1), mac(4)), START), dropped, "not attached");
    let mut alone = Switch::new(Config::default());
    alone.attach(A, AntiSpoofing::default()).unwrap();
    assert_eq!(alone.forward(A, &frame(Mac::BROADCAST, mac(1)), START), dropped);
}

#[test]
fn malformed_frames_are_refused() {
    let mut switch = open();
    let malformed = Verdict::Drop(DropReason::Malformed);
    for head in [&[][..], &[0; 13], &frame(mac(2), Mac::BROADCAST), &frame(mac(2), Mac::default())] {
        assert_eq!(switch.forward(A, head, START), malformed);
    }
    assert_eq!(switch.forward(A, &ethernet(mac(2), mac(1), &[1, 2, 3], 0x88b5, &[]), START), malformed);
}

#[test]
fn isolated_guests_reach_only_the_uplink() {
    let mut switch = switch(true, pinned_mac);
    assert_eq!(switch.forward(A, &frame(mac(2), mac(1)), START), Verdict::Drop(DropReason::NoDestination));
    assert_eq!(switch.forward(A, &frame(Mac::BROADCAST, mac(1)), START), Verdict::To(UPLINK));
    assert_eq!(switch.forward(A, &frame(mac(50), mac(1)), START), Verdict::To(UPLINK));
    assert_eq!(switch.forward(UPLINK, &frame(mac(2), mac(60)), START), Verdict::To(B));
    assert_eq!(switch.forward(A, &frame(mac(60), mac(1)), START), Verdict::To(UPLINK));
    assert_eq!(switch.forward(UPLINK, &frame(Mac::BROADCAST, mac(60)), START), Verdict::Flood);
    assert_eq!(switch.flood(UPLINK).collect::<Vec<_>>(), [A, B, C]);
    switch.isolate(false);
    assert_eq!(switch.forward(A, &frame(mac(2), mac(1)), START), Verdict::To(B));
}

#[test]
fn no_other_port_can_take_a_pinned_mac() {
    let mut switch = open();
    switch.forward(B, &frame(mac(9), mac(1)), START);
    switch.attach(A, pinned_mac(A)).unwrap();
    assert_eq!(switch.forward(C, &frame(mac(1), mac(3)), START), Verdict::To(A), "known before its first frame");
    let spoofed = Verdict::Drop(DropReason::SpoofedMac);
    for thief in [UPLINK, B, C] {
        assert_eq!(switch.forward(thief, &frame(mac(9), mac(1)), START), spoofed);
    }
    assert_eq!(switch.forward(A, &frame(mac(9), mac(4)), START), spoofed);
    let tagged = ethernet(mac(1), mac(3), &[7], 0x88b5, &[0; 46]);
    assert_eq!(switch.forward(C, &tagged, Nanos(u64::MAX - 1)), Verdict::To(A), "in every VLAN, without ageing");
    assert_eq!(switch.attach(B, pinned_mac(A)), Err(Taken { mac: mac(1), port: A }));
    switch.detach(A);
    assert_eq!(switch.attach(B, pinned_mac(A)), Ok(()));
}

#[test]
fn a_port_that_invents_addresses_evicts_only_its_own() {
    let mut switch = open();
    switch.forward(UPLINK, &frame(mac(9), mac(8)), START);
    switch.forward(B, &frame(mac(9), mac(2)), START);
    for invented in 100..60_000 {
        switch.forward(A, &frame(mac(9), mac(invented)), START);
    }
    assert_eq!(switch.forward(C, &frame(mac(2), mac(3)), START), Verdict::To(B));
    assert_eq!(switch.forward(C, &frame(mac(8), mac(3)), START), Verdict::To(UPLINK));
    assert_eq!(switch.table.len(), GUEST_ADDRESSES + 3);
    assert_eq!(switch.forward(C, &frame(mac(59_999), mac(3)), START), Verdict::To(A), "the newest is known");
    assert_eq!(switch.forward(C, &frame(mac(59_999 - 64), mac(3)), START), Verdict::Flood, "older ones are not");
    for invented in 100..60_000 {
        switch.forward(UPLINK, &frame(mac(9), mac(invented)), START);
    }
    assert!(switch.table.len() <= GUEST_ADDRESSES + UPLINK_ADDRESSES + 3);
    assert_eq!(switch.forward(C, &frame(mac(2), mac(3)), START), Verdict::To(B));
}

const OWN4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0x00ff, 0xfe00, 0x0001);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Whether A, pinned to its MAC and IP addresses, may send this. Checks that VLAN tags make no difference.
fn judge(kind: u16, packet: &[u8]) -> Result<(), DropReason> {
    let mut switch = switch(false, |port| match port {
        A => AntiSpoofing { addresses: vec![IpAddr::V4(OWN4), IpAddr::V6(OWN6)], ..pinned_mac(A) },
        _ => AntiSpoofing::default(),
    });
    let mut verdicts = [&[][..], &[5, 6]].map(|tags| {
        let frame = ethernet(Mac::BROADCAST, mac(1), tags, kind, packet);
        match switch.forward(A, &frame[..frame.len().min(128)], START) {
            Verdict::Drop(reason) => Err(reason),
            _ => Ok(()),
        }
    });
    verdicts.sort_by_key(Result::is_err);
    assert_eq!(verdicts[0], verdicts[1], "tags change nothing");
    verdicts[0]
}

const SPOOFED: Result<(), DropReason> = Err(DropReason::SpoofedAddress);
const MALFORMED: Result<(), DropReason> = Err(DropReason::Malformed);

#[test]
fn pinned_addresses_in_arp() {
    assert_eq!(judge(ethertype::ARP, &arp(mac(1), OWN4, OTHER4)), Ok(()));
    assert_eq!(judge(ethertype::ARP, &arp(mac(1), Ipv4Addr::UNSPECIFIED, OTHER4)), Ok(()), "a probe");
    assert_eq!(judge(ethertype::ARP, &arp(mac(1), OTHER4, OWN4)), SPOOFED);
    assert_eq!(judge(ethertype::ARP, &arp(mac(2), OWN4, OTHER4)), Err(DropReason::SpoofedMac));
    assert_eq!(judge(ethertype::ARP, &[0; 27]), MALFORMED);
    assert_eq!(judge(0x88b5, &[0; 27]), Ok(()), "no address to check");
}

#[test]
fn pinned_addresses_in_ipv4() {
    let packet = |source, destination, ports: (u16, u16)| {
        ipv4(source, destination, protocol::UDP, &udp(ports.0, ports.1, &[0; 300]))
    };
    let (none, all) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    assert_eq!(judge(ethertype::IPV4, &packet(OWN4, OTHER4, (1, 2))), Ok(()));
    assert_eq!(judge(ethertype::IPV4, &packet(OTHER4, OWN4, (1, 2))), SPOOFED);
    assert_eq!(judge(ethertype::IPV4, &packet(none, all, (68, 67))), Ok(()), "DHCP");
    assert_eq!(judge(ethertype::IPV4, &packet(none, all, (68, 53))), SPOOFED);
    assert_eq!(judge(ethertype::IPV4, &packet(none, OTHER4, (68, 67))), SPOOFED);
    let mut fragment = packet(none, all, (68, 67));
    fragment[6] = 0x20;
    assert_eq!(judge(ethertype::IPV4, &fragment), SPOOFED);
    assert_eq!(judge(ethertype::IPV4, &packet(OWN4, all, (1, 2))[..19]), MALFORMED);
}

#[test]
fn pinned_addresses_in_ipv6() {
    let advertise = |target: Ipv6Addr| [&[NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..]].concat();
    let icmp = |source, kind| ipv6(source, OTHER6, protocol::ICMPV6, &[&[kind][..], &[0; 23]].concat());
    let advertisement = |target| ipv6(OWN6, OTHER6, protocol::ICMPV6, &advertise(target));
    let tcp = |source| ipv6(source, OTHER6, protocol::TCP, &[0; 20]);
    for source in [OWN6, LINK_LOCAL] {
        assert_eq!(judge(ethertype::IPV6, &tcp(source)), Ok(()), "{source}");
        assert_eq!(judge(ethertype::IPV6, &advertisement(source)), Ok(()), "{source}");
    }
    for source in [OTHER6, ROUTER] {
        assert_eq!(judge(ethertype::IPV6, &tcp(source)), SPOOFED, "{source}");
        assert_eq!(judge(ethertype::IPV6, &advertisement(source)), SPOOFED, "{source}");
    }
    assert_eq!(judge(ethertype::IPV6, &icmp(Ipv6Addr::UNSPECIFIED, 135)), Ok(()), "duplicate address detection");
    assert_eq!(judge(ethertype::IPV6, &tcp(Ipv6Addr::UNSPECIFIED)), SPOOFED);
    assert_eq!(judge(ethertype::IPV6, &tcp(OWN6)[..39]), MALFORMED);
}

#[test]
fn extension_headers_do_not_hide_an_advertisement() {
    let hidden = |options: u8| {
        let mut chain = vec![0; 8 + 8 * usize::from(options)];
        (chain[0], chain[1]) = (protocol::ICMPV6, options);
        chain.extend([NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0]);
        chain.extend(OTHER6.octets());
        ipv6(OWN6, OTHER6, protocol::HOP_BY_HOP, &chain)
    };
    assert_eq!(judge(ethertype::IPV6, &hidden(0)), SPOOFED);
    assert_eq!(judge(ethertype::IPV6, &hidden(8)), MALFORMED, "beyond the bytes that are examined");
}

/// A naive implementation of the rules without anti-spoofing.
#[derive(Default)]
struct Model {
    isolate: bool,
    attached: Vec<PortId>,
    learned: HashMap<(Mac, u16), (PortId, Nanos)>,
}

impl Model {
    fn may_reach(&self, from: PortId, port: PortId) -> bool {
        port != from && (!self.isolate || from == UPLINK || port == UPLINK)
    }

    fn reached(&mut self, from: PortId, to: Mac, source: Mac, vlan: u16, now: Nanos) -> Vec<PortId> {
        if !self.attached.contains(&from) {
            return Vec::new();
        }
        self.learned.insert((source, vlan), (from, now));
        match self.learned.get(&(to, vlan)) {
            Some((port, seen)) if now.since(*seen) < AGEING => {
                [*port].into_iter().filter(|port| self.may_reach(from, *port)).collect()
            }
            _ => self.attached.iter().copied().filter(|port| self.may_reach(from, *port)).collect(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Frame { from: u32, to: u16, source: u16, vlan: u16, wait: u64 },
    Attach(u32),
    Detach(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..5u32, 0..12u16, 0..12u16, 0..3u16, prop_oneof![Just(0), 0..200u64])
            .prop_map(|(from, to, source, vlan, wait)| Step::Frame { from, to, source, vlan, wait }),
        1 => (1..5u32).prop_map(Step::Attach),
        1 => (1..5u32).prop_map(Step::Detach),
    ]
}

proptest! {
    #[test]
    fn verdicts_match_the_model(isolate: bool, seed: u64, steps in proptest::collection::vec(step(), 0..300)) {
        let mut switch = Switch::new(Config { isolate, seed });
        switch.attach_uplink(UPLINK);
        let mut model = Model { isolate, attached: vec![UPLINK], ..Model::default() };
        let mut now = START;
        for step in steps {
            match step {
                Step::Attach(port) | Step::Detach(port) => {
                    let port = PortId(port);
                    model.attached.retain(|other| *other != port);
                    model.learned.retain(|_, (known, _)| *known != port);
                    if matches!(step, Step::Attach(_)) {
                        model.attached.push(port);
                        switch.attach(port, AntiSpoofing::default()).unwrap();
                    } else {
                        switch.detach(port);
                    }
                }
                Step::Frame { from, to, source, vlan, wait } => {
                    now += Nanos::from_millis(wait * 1000);
                    let (from, tags) = (PortId(from), if vlan == 0 { vec![] } else { vec![vlan] });
                    let frame = ethernet(mac(to), mac(source), &tags, 0x88b5, &[]);
                    let reached: Vec<PortId> = match switch.forward(from, &frame, now) {
                        Verdict::To(port) => vec![port],
                        Verdict::Flood => switch.flood(from).collect(),
                        Verdict::Drop(reason) => {
                            prop_assert_eq!(reason, DropReason::NoDestination);
                            vec![]
                        }
                    };
                    prop_assert_eq!(reached, model.reached(from, mac(to), mac(source), vlan, now));
                }
            }
        }
    }

    #[test]
    fn any_bytes_get_a_verdict(mut head in proptest::collection::vec(any::<u8>(), 0..128), kind in 0..4usize) {
        let mut switch = switch(false, |port| AntiSpoofing { mac: None, addresses: vec![IpAddr::V4([10, 0, 0, port.0 as u8].into())] });
        if head.len() > 14 {
            let kind = [ethertype::IPV4, ethertype::IPV6, ethertype::ARP, ethertype::VLAN][kind];
            head[12..14].copy_from_slice(&kind.to_be_bytes());
        }
        for port in 0..4 {
            switch.forward(PortId(port), &head, START);
        }
    }
}
