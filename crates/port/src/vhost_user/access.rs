//! Who may be at the other end of a vhost-user socket: whose the socket is, and who is let in, by what the kernel says of a peer when it
//! connected (SO_PEERCRED of unix(7)), or began to listen.

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Gid, Uid, fchownat};
use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Who may be at the other end of a socket; by default whom the file system lets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The user whose the socket is made, and who alone may be there.
    pub owner: Option<u32>,
    /// The group whose the socket is made, and of which one must be.
    pub group: Option<u32>,
    /// The socket's permissions.
    pub mode: Option<u32>,
}

impl Access {
    /// Gives a socket to whose it is. Nobody can connect before it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn give(&self, path: &Path) -> io::Result<()> {
        if let Some(mode) = self.mode {
            set_permissions(path, Permissions::from_mode(mode))?;
        }
        if self.owner.is_some() || self.group.is_some() {
            let (owner, group) = (self.owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
            fchownat(AT_FDCWD, path, owner, group, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Sees that a peer may be there.
    ///
    /// # Errors
    /// A sentence that says who it is and who may; or what the system says.
    pub fn admit(&self, peer: &UnixStream) -> io::Result<()> {
        if self.owner.is_none() && self.group.is_none() {
            return Ok(());
        }
        let found = getsockopt(peer, PeerCredentials)?;
        let refused = |may: String| {
            let (process, user) = (found.pid(), found.uid());
            Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("process {process} of user {user} is at the other end of the socket, and only {may} may be"),
            ))
        };
        match (self.owner, self.group) {
            (Some(owner), _) if owner != found.uid() => refused(format!("user {owner} (owner)")),
            (_, Some(group)) if group != found.gid() && !groups(peer)?.contains(&group) => {
                refused(format!("who is of group {group} (group)"))
            }
            _ => Ok(()),
        }
    }
}

/// The groups that a peer is of beside its own (SO_PEERGROUPS of socket(7)).
fn groups(peer: &UnixStream) -> io::Result<Vec<libc::gid_t>> {
    let mut groups: Vec<libc::gid_t> = Vec::new();
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        let place = groups.as_mut_ptr();
        // SAFETY: the kernel writes as many bytes as there are, or none.
        let done = unsafe {
            let fd = peer.as_raw_fd();
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, place.cast(), &raw mut bytes)
        };
        let have = bytes as usize / size_of::<libc::gid_t>();
        match io::Error::last_os_error() {
            _ if done == 0 => {
                groups.truncate(have);
                return Ok(groups);
            }
            // It said how many there are.
            error if error.raw_os_error() == Some(libc::ERANGE) && have > groups.len() => groups.resize(have, 0),
            error => return Err(error),
        }
    }
}
