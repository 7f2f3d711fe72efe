//! A Xen frontend that breaks the rules, in a guest of the lab's Xen host: it takes the card from the guest's own
//! driver, connects to the backend in the same way, with pages and a channel of its own, and makes one attack.
//!
//! `hostile ATTACK` prints the reference of the page with its frame, and ends once the backend has closed the card.
#![allow(clippy::disallowed_methods)] // it is the guest

use fairlane_port::xen::PAGE;
use fairlane_port::xen::gntalloc::Pages;
use fairlane_port::xen::store::Store;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The card in xenstore.
const CARD: &str = "device/vif/0";

/// The card in sysfs while the guest's own driver is bound to it, and the file that unbinds it.
const DRIVEN: &str = "/sys/bus/xen/drivers/vif/vif-0";
const UNBIND: &str = "/sys/bus/xen/drivers/vif/unbind";

/// The backend's domain.
const DOM0: u16 = 0;

/// The time allowed for a step of the backend: guest and backend are both emulated, on a machine that has other work.
const BACKEND_TIMEOUT: Duration = Duration::from_secs(20);

/// States (`enum xenbus_state`).
const INITIALISING: u8 = 1;
const INIT_WAIT: u8 = 2;
const CONNECTED: u8 = 4;
const CLOSING: u8 = 5;
const CLOSED: u8 = 6;

/// Words of a ring's header, its bytes, and the slots after it (xen/include/public/io/ring.h).
const REQUESTS: usize = 0;
const RESPONSES: usize = 2;
const HEADER: usize = 64;
const SLOTS: u32 = 256;

/// NETTXF_more_data
const MORE: u16 = 4;

/// The head of a broadcast frame, from an unused address, of an experimental type; and the frame's bytes.
const HEAD: [u8; 14] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 66, 0x88, 0xb5];
const FRAME: u16 = 1500;

/// A reference beyond any table of grants.
const NEVER_GRANTED: u32 = 3_000_000_000;

fn main() -> ExitCode {
    let attack = std::env::args().nth(1).unwrap_or_default();
    match release().and_then(|()| Frontend::connect()).and_then(|frontend| frontend.run(&attack)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostile {attack}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Unbinds the guest's own driver from the card, which ends when the backend has closed it.
fn release() -> io::Result<()> {
    if Path::new(DRIVEN).exists() { fs::write(UNBIND, "vif-0") } else { Ok(()) }
}

struct Frontend {
    store: Store,
    /// The backend's path in xenstore.
    backend: String,
    transmit: Page,
    receive: Page,
    channel: Channel,
    /// Requests in the transmit ring so far.
    sent: u32,
}

impl Frontend {
    /// A connected frontend whose rings are empty.
    fn connect() -> io::Result<Frontend> {
        let mut store = Store::open().map_err(io::Error::other)?;
        let backend = store.read(&format!("{CARD}/backend"))?;
        let (transmit, receive, channel) = (Page::grant(true)?, Page::grant(true)?, Channel::offer()?);
        let mut frontend = Frontend { store, backend, transmit, receive, channel, sent: 0 };
        frontend.enter(INITIALISING)?;
        frontend.until(INIT_WAIT)?;
        for (key, value) in [
            ("multi-queue-num-queues", 1),
            ("tx-ring-ref", frontend.transmit.reference()),
            ("rx-ring-ref", frontend.receive.reference()),
            ("event-channel-tx", frontend.channel.port),
            ("event-channel-rx", frontend.channel.port),
            ("request-rx-copy", 1),
            ("feature-rx-notify", 1),
        ] {
            frontend.store.write(&format!("{CARD}/{key}"), &value.to_string())?;
        }
        frontend.enter(CONNECTED)?;
        frontend.until(CONNECTED)?;
        Ok(frontend)
    }

    /// Makes the attack, and leaves the card like a driver whose backend closed it.
    fn run(mut self, attack: &str) -> io::Result<()> {
        let page = Page::grant(false)?;
        page.write(0, &HEAD);
        let frame = page.reference();
        println!("{frame}");
        match attack {
            "index-that-runs" => self.sent = 1 << 30,
            "never-granted" => self.request(NEVER_GRANTED, 0, 0, FRAME),
            "over-the-edge" => self.request(frame, 4000, 0, 200),
            "endless-chain" => (0..SLOTS).for_each(|_| self.request(frame, 0, MORE, FRAME)),
            "revoked-in-flight" => {
                self.fill(frame);
                while self.answered() == 0 {
                    thread::yield_now();
                }
                drop(page);
                if self.answered() == SLOTS {
                    return Err(io::Error::other("all frames were answered before their page was revoked"));
                }
            }
            // A read-only page, posted as a receive buffer.
            "read-only-buffer" => {
                self.receive.write(HEADER + 4, &frame.to_le_bytes());
                self.receive.word(REQUESTS).store(1, Ordering::Release);
            }
            "ring-kept-full" => loop {
                self.fill(frame);
                thread::sleep(Duration::from_millis(1));
            },
            _ => return Err(io::Error::other("there is no such attack")),
        }
        self.publish();
        self.until(CLOSING)?;
        self.enter(CLOSED)?;
        self.until(CLOSED)
    }

    /// Puts a request into the next slot of the transmit ring (`netif_tx_request`).
    fn request(&mut self, reference: u32, offset: u16, flags: u16, size: u16) {
        let slot = HEADER + 12 * (self.sent % SLOTS) as usize;
        self.transmit.write(slot, &reference.to_le_bytes());
        let id = self.sent as u16;
        for (index, half) in [offset, flags, id, size].into_iter().enumerate() {
            self.transmit.write(slot + 4 + 2 * index, &half.to_le_bytes());
        }
        self.sent = self.sent.wrapping_add(1);
    }

    /// Publishes the requests so far, and notifies the backend.
    fn publish(&self) {
        self.transmit.word(REQUESTS).store(self.sent, Ordering::Release);
        self.channel.notify();
    }

    /// Requests that the backend answered.
    fn answered(&self) -> u32 {
        self.transmit.word(RESPONSES).load(Ordering::Acquire)
    }

    /// Fills the transmit ring with frames.
    fn fill(&mut self, frame: u32) {
        while self.sent.wrapping_sub(self.answered()) < SLOTS {
            self.request(frame, 0, 0, FRAME);
        }
        self.publish();
    }

    fn enter(&mut self, state: u8) -> io::Result<()> {
        self.store.write(&format!("{CARD}/state"), &state.to_string())
    }

    /// Waits until the backend is in a state.
    fn until(&mut self, state: u8) -> io::Result<()> {
        let start = Instant::now();
        loop {
            let found = self.store.read(&format!("{}/state", self.backend))?;
            if found == state.to_string() {
                return Ok(());
            }
            if start.elapsed() > BACKEND_TIMEOUT {
                return Err(io::Error::other(format!("the backend is in state {found} and did not reach {state}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A page that is granted to the backend until it is dropped.
struct Page(Pages);

impl Page {
    fn grant(writable: bool) -> io::Result<Page> {
        Pages::grant(DOM0, writable, 1).map(Page)
    }

    fn reference(&self) -> u32 {
        self.0.references()[0]
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE);
        // SAFETY: within the page, which does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.start().add(at), bytes.len()) };
    }

    /// A word of a ring's header.
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at < HEADER / 4);
        // SAFETY: within the page, which is mapped as long as `self` lives, and aligned.
        unsafe { AtomicU32::from_ptr(self.0.start().cast::<u32>().add(at)) }
    }
}

/// IOCTL_EVTCHN_BIND_UNBOUND_PORT, with the domain that may bind it, and IOCTL_EVTCHN_NOTIFY, with the port
/// (linux/include/uapi/xen/evtchn.h).
const OFFER: libc::Ioctl = 0x4_4502;
const NOTIFY: libc::Ioctl = 0x4_4504;

/// An event channel.
struct Channel {
    device: File,
    port: u32,
}

impl Channel {
    /// A channel that the backend may bind.
    fn offer() -> io::Result<Channel> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/xen/evtchn")?;
        let mut domain = u32::from(DOM0);
        // SAFETY: the word is alive; the result is the port.
        let port = unsafe { libc::ioctl(device.as_raw_fd(), OFFER, &mut domain) };
        if port < 0 { Err(io::Error::last_os_error()) } else { Ok(Channel { device, port: port as u32 }) }
    }

    fn notify(&self) {
        let mut port = self.port;
        // SAFETY: the word is alive. It fails only if the backend has closed its end, which then needs no notification.
        unsafe { libc::ioctl(self.device.as_raw_fd(), NOTIFY, &mut port) };
    }
}
