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

/// Channels of one opened device, unbound when it is closed.
pub struct Channels {
    device: File,
    /// The numbers of those that had an event, as they were read: each stays masked until its number is written back.
    silent: Vec<u8>,
}

impl Channels {
    /// None yet.
    pub fn open() -> io::Result<Channels> {
        let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE);
        let device = device.map_err(|error| io::Error::new(error.kind(), format!("{DEVICE}: {error}")))?;
        Ok(Channels { device, silent: Vec::new() })
    }
}

impl Events for Channels {
    fn bind(&self, domain: u16, remote: u32) -> io::Result<u32> {
        let mut bind = [u32::from(domain), remote];
        // SAFETY: the two words are alive; the answer is the local port.
        let port = unsafe { libc::ioctl(self.device.as_raw_fd(), BIND, &mut bind) };
        if port < 0 { Err(io::Error::last_os_error()) } else { Ok(port as u32) }
    }

    fn notify(&self, channel: u32) {
        let mut port = channel;
        // SAFETY: the word is alive. It fails only for a port that is not bound, where there is nobody to be told.
        unsafe { libc::ioctl(self.device.as_raw_fd(), NOTIFY, &mut port) };
    }

    fn take(&mut self) {
        let mut ports = [0; 64];
        if let Ok(read) = self.device.read(&mut ports) {
            self.silent.extend_from_slice(&ports[..read]);
        }
    }

    fn listen(&mut self) {
        if !self.silent.is_empty() {
            // Those that are bound are all ours, so this fails for none.
            let _ = self.device.write(&self.silent);
            self.silent.clear();
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a C compiler with xen/evtchn.h has them.
    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!([BIND, NOTIFY], [0x8_4501, 0x4_4504]);
    }
}
