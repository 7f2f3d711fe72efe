//! Capabilities: none is needed once taps and cards are open, but CAP_CHOWN where sockets are given to others. The sockets of vifs,
//! early ack's files and Xen's devices are opened again as their owner.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet, clear, has_cap, read, set};

/// How many this thread has, or may take.
pub(super) fn count() -> Result<usize, CapsError> {
    read(None, CapSet::Permitted).map(|capabilities| capabilities.len())
}

/// Whether this thread may give files to others.
pub(super) fn can_give() -> Result<bool, CapsError> {
    has_cap(None, CapSet::Effective, Capability::CAP_CHOWN)
}

/// Has this thread be without any, but that to give files to others where it `gives`. What an executed file could give it goes too, where that is allowed; where not, `no_new_privs` keeps it
/// away.
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
