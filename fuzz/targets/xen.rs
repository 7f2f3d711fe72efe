//! A Xen frontend with arbitrary rings and grants that change at any time: its own vif may be disabled, and a
//! neighbour, with which it exchanges frames, loses none of its own.
#![no_main]

#[path = "../../crates/port/tests/xen/netfront/mod.rs"]
mod netfront;

use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload};
use fairlane_port::xen::FrontendFeatures;
use fairlane_port::{Control, Put, Refusal, Status, Wanted};
use libfuzzer_sys::fuzz_target;
use netfront::*;
use std::cell::RefCell;
use std::sync::Arc;

const HOSTILE: u16 = 1;
const HONEST: u16 = 2;

/// Bytes of a step.
const STEP: usize = 6;

/// Two guests of a host.
struct Bench {
    machine: Arc<Machine>,
    hostile: Frontend,
    honest: Frontend,
    backends: [Backend; 2],
}

thread_local! {
    static BENCHES: RefCell<[Bench; 2]> = RefCell::new([Machine::default(), Machine::with_self_grants()].map(Bench::new));
}

// The first byte selects the host's memory and the frontend's features, two more the rings' indices; steps follow.
fuzz_target!(|input: &[u8]| {
    let Some((&[setting, transmit, receive], steps)) = input.split_first_chunk() else { return };
    BENCHES.with_borrow_mut(|benches| {
        let bench = &mut benches[usize::from(setting & 1)];
        bench.begin(setting, [transmit, receive]);
        for step in steps.as_chunks().0 {
            bench.step(step);
            bench.exchange();
        }
        bench.disconnect();
    });
});

impl Bench {
    fn new(machine: Machine) -> Bench {
        let machine = Arc::new(machine);
        let hostile = Frontend::new(&machine, HOSTILE);
        let honest = Frontend::new(&machine, HONEST);
        (0..8).for_each(|page| hostile.grant(PAGES + page, 0, &tcp_frame(4000)));
        Bench { machine, hostile, honest, backends: [Backend::new(), Backend::new()] }
    }

    /// Connects both guests. The hostile one's rings begin at any index.
    fn begin(&mut self, setting: u8, indices: [u8; 2]) {
        let bit = |number: u8| setting >> number & 1 != 0;
        self.hostile.begin();
        self.honest.begin();
        for (ring, index) in [TX, RX].into_iter().zip(indices) {
            // Near the numbers where it wraps.
            let next = u32::from(index).wrapping_sub(8);
            (0..4).for_each(|word| self.hostile.set_word(ring, word, next));
            if ring == TX { self.hostile.sent = next } else { self.hostile.posted = next }
        }
        let features = FrontendFeatures { scatter_gather: bit(1), gso: [bit(2), bit(3)], checksum: [bit(4), bit(5)] };
        let link = Frontend::link(&[&self.hostile], features).expect("its rings are valid at the start");
        self.backends[0].plug().connect(link);
        self.backends[0].settle();
        self.backends[1].connect(&[&self.honest], EVERYTHING);
        self.honest.post_buffers(256);
    }

    /// Does one step of the hostile guest.
    fn step(&mut self, step: &[u8; STEP]) {
        let [kind, which, a, b, c, d] = *step;
        let (low, high) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        // Mostly granted pages, and mostly small offsets and sizes.
        let page = PAGES + u32::from(which % 16);
        let offset = if which & 0x10 == 0 { low % 4096 } else { low };
        let size = if which & 0x20 == 0 { high % 4500 } else { high };
        match kind % 16 {
            0..=2 => self.hostile.request(page, offset, u16::from(kind >> 4), size),
            3 => self.hostile.extra(a, b, high, which),
            4 => self.hostile.publish(),
            5 => self.hostile.set_producer(self.hostile.sent.wrapping_add(u32::from(low))),
            6 => self.hostile.sent = self.hostile.sent.wrapping_sub(u32::from(a)),
            7 => self.hostile.post_buffers(u32::from(which % 32)),
            8 => {
                self.hostile.post_buffer(low, BUFFERS + u32::from(which));
                self.hostile.set_receive_producer(self.hostile.posted);
            }
            9 => self.hostile.set_receive_producer(self.hostile.posted.wrapping_add(u32::from(low))),
            10 => self.hostile.set_word(1 + u32::from(which & 1), usize::from(a), u32::from(high)),
            11 => self.hostile.withdraw(if which & 1 == 0 { page } else { BUFFERS + u32::from(a % 64) }),
            12 => self.machine.miss(HOSTILE, if which & 1 == 0 { page } else { BUFFERS + u32::from(a % 64) }),
            13 => self.hostile.grant(page, usize::from(low % 4000), &step[1..]),
            14 => self.machine.send_event(),
            _ => self.hostile.changes_size_and_id()(low, high),
        }
    }

    /// Passes frames in all directions, as a worker would: from guest to guest, from outside, and out.
    fn exchange(&mut self) {
        self.honest.transmit(&frame(1, 300), 4096, 0, 0, None);
        self.honest.transmit(&tcp_frame(5000), 4000, 7, BLANK, Some((1400, 1)));
        let [from, to] = &mut self.backends;
        let to_honest = from.pass(to);
        assert_eq!(self.receive().len(), to_honest.accepted);
        let [from, to] = &mut self.backends;
        // One frame of the honest guest goes to the hostile one; if it is accepted, it is whole.
        let Put { accepted, refusal } = to.pass(from);
        assert!(accepted + usize::from(refusal.is_some()) >= 1 || accepted == 2);
        let taken = accepted + usize::from(matches!(refusal, Some(Refusal::Never(_))));
        let whole = [(frame(1, 300), Offload::default()), (tcp_frame(5000), large())];
        assert!(to.take() == whole[taken..], "its other frames are unchanged");
        assert_eq!(
            self.honest.responses().iter().filter(|(_, status)| *status != 0).count(),
            1,
            "and all are answered: {taken}"
        );
        assert_eq!(to.put(&tcp_frame(3000), large()).accepted, 1);
        assert!(self.receive() == [tcp_frame(3000)]);
        let [from, to] = &mut self.backends;
        assert_eq!(to.port.status(), Status::Up);
        // Frames for the hostile guest and from it, besides others.
        from.put(&frame(2, 1500), Offload::default());
        from.put(&tcp_frame(4000), large());
        from.take();
        from.port.enable_notifications(Wanted { frames: true, room: true });
        from.settle();
    }

    /// The frames that the honest guest received. It posts as many buffers again.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let received = self.honest.receive();
        let slots =
            |(bytes, _, gso): &Received| (bytes.len().div_ceil(4096).max(1) + usize::from(gso.is_some())) as u32;
        self.honest.post_buffers(received.iter().map(slots).sum());
        received.into_iter().map(|(bytes, ..)| bytes).collect()
    }

    /// Disconnects both: nothing stays mapped. Revoked pages are granted again.
    fn disconnect(&mut self) {
        for backend in &mut self.backends {
            backend.plug().disconnect();
            backend.settle();
            while backend.disconnected.try_recv().is_ok() {}
        }
        for (domain, ring) in [(HOSTILE, TX), (HOSTILE, RX), (HONEST, TX), (HONEST, RX)] {
            assert_eq!(self.machine.users(domain, ring), 2);
        }
        (0..8).for_each(|page| self.hostile.grant(PAGES + page, 0, &tcp_frame(4000)[..8]));
        (0..64).for_each(|buffer| self.hostile.grant(BUFFERS + buffer, 0, &[]));
        (8..16).for_each(|page| self.hostile.withdraw(PAGES + page));
    }
}

/// The offload of a large segment.
fn large() -> Offload {
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 1400, header: 54 };
    Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso: Some(gso) }
}
