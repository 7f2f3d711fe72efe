//! The numbers of users and groups that a policy names.

use crate::confinement;
use fairlane_policy::Account;
use nix::errno::Errno;
use nix::unistd::{Group, User};
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// Numbers of the names that were looked up, by kind.
static KNOWN: Mutex<BTreeMap<(&str, String), u32>> = Mutex::new(BTreeMap::new());

/// The policy's key of a name, what it names, and the file that has these on a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    key: &'static str,
    kind: &'static str,
    file: &'static str,
}

const OWNER: Named = Named { key: "owner", kind: "user", file: "/etc/passwd" };
const GROUP: Named = Named { key: "group", kind: "group", file: "/etc/group" };

/// Why a name has no number.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("{}: a confined backend can look up no new {}s: give the number of `{name}`, or restart it", of.key, of.kind)]
    New { of: Named, name: String },
    #[error("{}: the {} `{name}` cannot be looked up: {error}", of.key, of.kind)]
    Silent { of: Named, name: String, error: nix::Error },
    #[error("{}: no {} is named `{name}` on this host: make it, or name another", of.key, of.kind)]
    Nobody { of: Named, name: String },
}

/// A user's number.
pub(crate) fn user(account: &Account) -> Result<u32, Unknown> {
    number(OWNER, account, |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())))
}

/// A group's number.
pub(crate) fn group(account: &Account) -> Result<u32, Unknown> {
    number(GROUP, account, |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())))
}

/// Whether the program is linked statically. Such a one cannot load what nsswitch.conf(5) names (glibc crashes), and knows only the
/// accounts of this host's own files.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// The number of a name in passwd(5) or group(5): lines of name, password, number and more.
fn listed(file: &str, name: &str) -> Result<Option<u32>, nix::Error> {
    let text = fs::read(file).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
    let number = |line: &str| {
        let mut fields = line.split(':');
        fields.next().filter(|of| *of == name)?;
        fields.nth(1)?.parse().ok()
    };
    Ok(String::from_utf8_lossy(&text).lines().find_map(number))
}

fn number(
    of: Named,
    account: &Account,
    look_up: impl FnOnce(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, Unknown> {
    let name = match account {
        Account::Number(number) => return Ok(*number),
        Account::Name(name) => name,
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // The lookup may use any library of this host (NSS), which may make any system call.
    if confinement::is_prepared() {
        let number = known.get(&(of.kind, name.clone())).copied();
        return number.ok_or_else(|| Unknown::New { of, name: name.clone() });
    }
    let found = if IS_STATIC { listed(of.file, name) } else { look_up(name) };
    let number = found
        .map_err(|error| Unknown::Silent { of, name: name.clone(), error })?
        .ok_or_else(|| Unknown::Nobody { of, name: name.clone() })?;
    known.insert((of.kind, name.clone()), number);
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_a_file_of_accounts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, b"root:x:0:0:\xff:/root:/bin/sh\nbroken\nworse:x:\nnobody:x:65534:65534::/:/bin/false\n")
            .unwrap();
        let found = |name| listed(file.path().to_str().unwrap(), name);
        assert_eq!(
            ["root", "nobody", "bod", "broken", "worse", ""].map(found),
            [Ok(Some(0)), Ok(Some(65534)), Ok(None), Ok(None), Ok(None), Ok(None)]
        );
        assert_eq!(listed("/no/such/file", "root"), Err(Errno::ENOENT));
        for name in ["root", "nobody"] {
            assert_eq!(
                listed("/etc/passwd", name).unwrap(),
                User::from_name(name).unwrap().map(|user| user.uid.as_raw())
            );
        }
    }
}
