//! Terminals in raw mode.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

/// Opens a tty in raw mode: no echo, no translation of line ends, no signals.
///
/// # Errors
/// Those of the system calls, with the tty's name.
pub fn open_raw(path: &Path) -> io::Result<File> {
    let open = || -> io::Result<File> {
        let tty = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NOCTTY).open(path)?;
        let mut settings = tcgetattr(&tty)?;
        cfmakeraw(&mut settings);
        tcsetattr(&tty, SetArg::TCSANOW, &settings)?;
        Ok(tty)
    };
    open().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
