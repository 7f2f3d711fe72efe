//! Access control for vhost-user sockets: who owns the socket, and which peers are admitted, by the credentials that
//! the kernel recorded when the peer connected (SO_PEERCRED of unix(7)) or began to listen.

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

/// Which peers are admitted; by default those that the file system permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The socket's owner. Only a peer of this user is admitted.
    pub owner: Option<u32>,
    /// The socket's group. Only a peer in this group is admitted.
    pub group: Option<u32>,
    /// The socket's permission bits.
    pub mode: Option<u32>,
}

impl Access {
    /// Sets a socket's owner, group and mode. Nobody can connect before it listens.
    ///
    /// # Errors
    /// The system's error.
    pub fn apply(&self, path: &Path) -> io::Result<()> {
        if let Some(mode) = self.mode {
            set_permissions(path, Permissions::from_mode(mode))?;
        }
        if self.owner.is_some() || self.group.is_some() {
            let (owner, group) = (self.owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
            fchownat(AT_FDCWD, path, owner, group, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Checks that a peer is admitted.
    ///
    /// # Errors
    /// Text that names the peer and who is admitted; or the system's error.
    pub fn admit(&self, peer: &UnixStream) -> io::Result<()> {
        if self.owner.is_none() && self.group.is_none() {
            return Ok(());
        }
        let found = getsockopt(peer, PeerCredentials)?;
        let refused = |may: String| {
            let (process, user) = (found.pid(), found.uid());
            Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the peer is process {process} of user {user}; only {may} may use the socket"),
            ))
        };
        match (self.owner, self.group) {
            (Some(owner), _) if owner != found.uid() => refused(format!("user {owner} (owner)")),
            (_, Some(group)) if group != found.gid() && !groups(peer)?.contains(&group) => {
                refused(format!("a member of group {group} (group)"))
            }
            _ => Ok(()),
        }
    }
}

/// The supplementary groups of a peer (SO_PEERGROUPS of socket(7)).
fn groups(peer: &UnixStream) -> io::Result<Vec<libc::gid_t>> {
    let mut groups: Vec<libc::gid_t> = Vec::new();
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        let place = groups.as_mut_ptr();
        // SAFETY: the kernel writes at most as many bytes as there are.
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
            // The kernel returned the number of groups.
            error if error.raw_os_error() == Some(libc::ERANGE) && have > groups.len() => groups.resize(have, 0),
            error => return Err(error),
        }
    }
}
