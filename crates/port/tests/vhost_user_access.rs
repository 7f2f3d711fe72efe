//! Who owns a socket, and which peers are admitted. Peers of other users are threads that drop root's rights.

mod frontend;

use fairlane_port::vhost_user::{Access, VhostUser};
use fairlane_port::{Control, Status};
use frontend::*;
use nix::unistd::geteuid;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

const OWNER: u32 = 64_001;
const OTHER: u32 = 64_002;
const GROUP: u32 = 64_101;

/// Whether this process may change its user; prints that the test is skipped if not.
fn is_root() -> bool {
    if !geteuid().is_root() {
        // Past the test harness, which shows only what failed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs root, to have peers of other users");
    }
    geteuid().is_root()
}

/// A directory that every user can enter.
fn open_place() -> (TempDir, PathBuf) {
    let (dir, path) = place();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    (dir, path)
}

/// Runs `work` as another user, of a group and of supplementary groups.
fn as_user<T: Send>(user: u32, group: u32, others: &[u32], work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let become_and_work = || {
            // SAFETY: the bare system calls change this thread only, which ends with the work; the list has the stated
            // length.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, others.len(), others.as_ptr()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, group, group, group), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
            }
            work()
        };
        scope.spawn(become_and_work).join().unwrap()
    })
}

fn backend(path: &Path, access: Access) -> Backend {
    Backend::new(VhostUser::listen_for("test", path, 1, access).unwrap())
}

/// Checks that a connected frontend is served.
#[track_caller]
fn is_served(backend: &mut Backend, stream: UnixStream) {
    let frontend = Frontend::over(stream, file_of("guest", MEMORY, nix::sys::memfd::MFdFlags::empty()), 8);
    frontend.set_up(RICH, 2);
    backend.until_up();
    drop(frontend);
    backend.until(|port| port.status() == Status::Waiting);
}

#[test]
fn a_socket_has_the_configured_owner_group_and_mode() {
    if !is_root() {
        return;
    }
    let (_dir, path) = place();
    // The process's umask would clear bits of one of these modes.
    for mode in [0o666, 0o600] {
        let _backend = backend(&path, Access { owner: Some(OWNER), group: Some(GROUP), mode: Some(mode) });
        let info = path.symlink_metadata().unwrap();
        assert_eq!((info.uid(), info.gid(), info.mode() & 0o777), (OWNER, GROUP, mode));
    }
    let _backend = backend(&path, Access { group: Some(GROUP), ..Access::default() });
    let info = path.symlink_metadata().unwrap();
    assert_eq!((info.uid(), info.gid()), (0, GROUP));
}

#[test]
fn an_owner_that_cannot_be_set_is_an_error_and_leaves_no_socket() {
    if !is_root() {
        return;
    }
    let (dir, path) = open_place();
    as_user(OWNER, GROUP, &[], || {
        let error = VhostUser::listen_for("test", &path, 1, Access { owner: Some(OTHER), ..Access::default() }).err();
        let error = error.unwrap().to_string();
        assert!(error.contains("vif.sock: cannot set its owner, group or mode: "), "{error}");
    });
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn only_the_owner_is_admitted() {
    if !is_root() {
        return;
    }
    let (_dir, path) = open_place();
    let mut backend = backend(&path, Access { owner: Some(OWNER), group: None, mode: Some(0o666) });
    for user in [OTHER, 0] {
        let stream = as_user(user, GROUP, &[], || UnixStream::connect(&path).unwrap());
        let reason = format!("of user {user}; only user {OWNER} (owner) may use the socket");
        backend.until(|port| matches!(port.status(), Status::Disabled(why) if why.contains(&reason)));
        let frontend = Frontend::over(stream, log_file(4096), 8);
        frontend.set_up(RICH, 2);
        backend.settle();
        assert_ne!(backend.port.status(), Status::Up);
    }
    let stream = as_user(OWNER, GROUP, &[], || UnixStream::connect(&path).unwrap());
    is_served(&mut backend, stream);
}

#[test]
fn only_members_of_the_group_are_admitted() {
    if !is_root() {
        return;
    }
    let (_dir, path) = open_place();
    let mut backend = backend(&path, Access { owner: None, group: Some(GROUP), mode: Some(0o666) });
    let many: Vec<u32> = (1..100).collect();
    for others in [&[][..], &[5], &many] {
        let _stream = as_user(OWNER, OTHER, others, || UnixStream::connect(&path).unwrap());
        let why = backend.until_disabled();
        assert!(why.contains(&format!("only a member of group {GROUP} (group) may use the socket")), "{why}");
        // The next admitted peer is served, and the reason for the last rejection is gone.
        let own = as_user(OTHER, GROUP, &[], || UnixStream::connect(&path).unwrap());
        is_served(&mut backend, own);
        let with_it = [others, &[GROUP]].concat();
        let beside = as_user(OTHER, OTHER, &with_it, || UnixStream::connect(&path).unwrap());
        is_served(&mut backend, beside);
    }
}

#[test]
fn a_listening_frontend_must_be_the_owner_too() {
    if !is_root() {
        return;
    }
    for (user, may) in [(OTHER, false), (OWNER, true)] {
        let (_dir, path) = open_place();
        let listener = as_user(user, GROUP, &[], || UnixListener::bind(&path).unwrap());
        let access = Access { owner: Some(OWNER), ..Access::default() };
        let mut backend = Backend::new(VhostUser::connect_for("test", &path, 1, access).unwrap());
        let (stream, _) = listener.accept().unwrap();
        if may {
            is_served(&mut backend, stream);
        } else {
            let why = backend.until_disabled();
            assert!(why.contains(&format!("only user {OWNER} (owner) may use the socket")), "{why}");
        }
    }
}
