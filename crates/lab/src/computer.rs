//! The emulated computer: one hardware, whatever system it is started as, so that systems are compared on the same.
//!
//! QEMU emulates it instruction by instruction. It has two serial lines (the first keeps what the system prints, the
//! second is the agent's) and an e1000 card, the host's link.

use std::path::Path;

use crate::{
    error::Error,
    guest::Launch,
    images::find_qemu,
    qemu::comma_doubled,
};
use std::time::Duration;

/// A computer to be started.
pub struct Computer<'a> {
    /// Physical CPUs.
    pub cpus: usize,
    /// Its memory, in MiB.
    pub memory_mib: usize,
    /// The kernel it loads, its command line, and what is loaded beside it: each a file and its own command line.
    pub kernel: &'a Path,
    /// The kernel's command line.
    pub command_line: String,
    /// Further files the kernel is given (multiboot modules; for Linux the initramfs alone), each with its words.
    pub modules: Vec<(&'a Path, String)>,
    /// The tap its card is joined to, and the process in whose network namespace that is.
    pub link: (&'a str, u32),
    /// The card's MAC address.
    pub mac: [u8; 6],
}

impl Computer<'_> {
    /// The command that is the computer; `log` keeps its first serial line.
    pub fn launch(&self, agent: &Path, log: &Path) -> Result<Launch, Error> {
        let qemu = find_qemu()?;
        let modules: Vec<String> = self
            .modules
            .iter()
            .map(|(path, words)| format!("{} {}", comma_doubled(path), words.replace(',', ",,")).trim_end().to_owned())
            .collect();
        let (tap, place) = self.link;
        let mac = self.mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut arguments: Vec<String> =
            ["place", &format!("inside={place}"), "any", &qemu.display().to_string()].map(str::to_owned).to_vec();
        arguments.extend(
            [
                // With SMAP, dom0 dies in Xen's create_bounce_frame.
                "-nodefaults -no-user-config -display none -no-reboot -machine pc -cpu max,-smap",
                &format!("-m {} -smp {}", self.memory_mib, self.cpus),
                "-accel tcg,thread=multi",
                "-chardev socket,id=agent,fd=0",
                &format!("-netdev tap,id=link,ifname={tap},script=no,downscript=no"),
                &format!("-device e1000,netdev=link,mac={mac}"),
            ]
            .iter()
            .flat_map(|words| words.split(' ').map(str::to_owned)),
        );
        arguments.extend(
            [
                "-chardev",
                &format!("file,id=console,append=on,path={}", comma_doubled(log)),
                "-device",
                "isa-serial,chardev=console",
                "-device",
                "isa-serial,chardev=agent",
                "-kernel",
                &self.kernel.display().to_string(),
                "-append",
                &self.command_line,
                "-initrd",
                &modules.join(","),
            ]
            .map(str::to_owned),
        );
        let image = format!("{}, {}", self.kernel.display(), modules.join(", "));
        Ok(Launch { program: agent.to_owned(), arguments, image, limit: Duration::from_secs(120) })
    }
}
