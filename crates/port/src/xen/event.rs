//! Event channels by /dev/xen/evtchn (linux/include/uapi/xen/evtchn.h).

use super::host::Events;
use super::ioctl::request;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

const DEVICE: &str = "/dev/xen/evtchn";

/// IOCTL_EVTCHN_BIND_INTERDOMAIN, with the remote domain and port.
const BIND: libc::Ioctl = request::<[u32; 2]>(b'E', 1);
/// IOCTL_EVTCHN_NOTIFY, with the port.
const NOTIFY: libc::Ioctl = request::<u32>(b'E', 4);

/// Event channels of one opened device, unbound when it is closed.
pub(super) struct Channels {
    device: File,
    /// The numbers of channels that had an event, as read from the device: each stays masked until its number is
    /// written back.
    masked: Vec<u8>,
}

impl Channels {
    /// A set without channels.
    pub(super) fn open() -> io::Result<Channels> {
        let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE);
        let device = device.map_err(|error| io::Error::new(error.kind(), format!("{DEVICE}: {error}")))?;
        Ok(Channels { device, masked: Vec::new() })
    }
}

impl Events for Channels {
    fn bind(&self, domain: u16, remote: u32) -> io::Result<u32> {
        let mut bind = [u32::from(domain), remote];
        // SAFETY: the two words are alive; the result is the local port.
        let port = unsafe { libc::ioctl(self.device.as_raw_fd(), BIND, &mut bind) };
        if port < 0 { Err(io::Error::last_os_error()) } else { Ok(port as u32) }
    }

    fn notify(&self, channel: u32) {
        let mut port = channel;
        // SAFETY: the word is alive. It fails only for a port that is not bound, which has nobody to notify.
        unsafe { libc::ioctl(self.device.as_raw_fd(), NOTIFY, &mut port) };
    }

    fn mask(&mut self) {
        let mut ports = [0; 64];
        if let Ok(read) = self.device.read(&mut ports) {
            self.masked.extend_from_slice(&ports[..read]);
        }
    }

    fn unmask(&mut self) {
        if !self.masked.is_empty() {
            // All bound channels are ours, so this fails for none.
            let _ = self.device.write(&self.masked);
            self.masked.clear();
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed by a C compiler with xen/evtchn.h.
    #[test]
    fn ioctl_numbers_match_the_kernels() {
        assert_eq!([BIND, NOTIFY], [0x8_4501, 0x4_4504]);
    }
}
