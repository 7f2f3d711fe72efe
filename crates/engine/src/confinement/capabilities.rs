//! Capabilities: once taps and cards are open, none is needed except CAP_CHOWN, if sockets are given to other users. Vifs' sockets,
//! early ack's files and Xen's devices are opened later as their owner.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet, clear, has_cap, read, set};

/// The number of capabilities that this thread has or may gain.
pub(super) fn count() -> Result<usize, CapsError> {
    read(None, CapSet::Permitted).map(|capabilities| capabilities.len())
}

/// Whether this thread may give files to other users.
pub(super) fn can_give() -> Result<bool, CapsError> {
    has_cap(None, CapSet::Effective, Capability::CAP_CHOWN)
}

/// Drops all capabilities of this thread, except CAP_CHOWN if `gives`. Those that an executed file could add are dropped too if
/// allowed; otherwise `no_new_privs` prevents them.
pub(super) fn give_up(gives: bool) -> Result<(), CapsError> {
    if has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        clear(None, CapSet::Bounding)?;
    }
    let kept = if gives && can_give()? { CapsHashSet::from([Capability::CAP_CHOWN]) } else { CapsHashSet::new() };
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        clear(None, set)?;
    }
    for of in [CapSet::Effective, CapSet::Permitted] {
        set(None, of, &kept)?;
    }
    Ok(())
}
