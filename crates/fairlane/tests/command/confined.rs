//! A backend that gave up what it does not need: what is left of it, and that it does its work.

use crate::frontend::{
    F_PROTOCOL, F_VERSION_1, Frontend, GET_VRING_BASE, SEND_RARP, SET_VRING_CALL, SET_VRING_KICK, log_file,
};
use crate::guests::{called, guest, passes, wait_for};
use crate::place::{Backend, POLICY, Place, assert_done, assert_refused};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getegid};
use seccompiler::{TargetArch, apply_filter, compile_from_json};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};

/// A guest at the other end of the wire.
const BATCH: &str = r#"[[vif]]
name = "batch"
link = "far"
socket = "DIR/batch.sock"
group = GROUP
"#;

/// What a reload adds: a socket to listen at, and one to connect to.
const MORE: &str = r#"[[vif]]
name = "late"
link = "near"
socket = "DIR/late.sock"
group = GROUP
mode = "0660"
[[vif]]
name = "calls"
link = "far"
socket = "DIR/calls.sock"
connect = true
"#;

/// A place with that policy.
pub fn place() -> Place {
    let place = Place::new();
    place.write("policy.toml", &policy());
    place.write("more.toml", &more());
    place
}

/// Texts whose sockets are of the group of whoever tests.
fn of_own_group(text: &str) -> String {
    text.replace("GROUP", &getegid().to_string())
}

/// Two guests, at the two ends of a wire.
fn policy() -> String {
    of_own_group(&format!("metrics = \"127.0.0.1:0\"\n{POLICY}{BATCH}"))
}

fn more() -> String {
    policy() + &of_own_group(MORE)
}

/// Has a backend do all that it can, and tells it to end. Nothing of it may fail.
pub fn work(place: &Place, backend: &mut Backend) {
    let (mut web, mut batch) = (guest(&place.path("web.sock")), guest(&place.path("batch.sock")));
    passes(&mut web, &mut batch);
    passes(&mut batch, &mut web);
    hears_by_all_means(&mut web, batch);
    let mut batch = guest(&place.path("batch.sock"));
    is_changed(place, backend, &mut web, &mut batch);

    // As its hypervisor does when a guest is moved; the answer is how far the ring is.
    let log = log_file(1 << 20);
    batch.log_all(F_VERSION_1 | F_PROTOCOL, 2, &log, 0);
    passes(&mut web, &mut batch);
    batch.send(SEND_RARP, 1, &[0x52, 0x54, 0, 0, 0, 2, 0, 0], &[]);
    batch.send(GET_VRING_BASE, 1, &[1, 0, 0, 0, 0, 0, 0, 0], &[]);
    assert_eq!(batch.reply().len(), 8);

    // Its memory goes away under the backend.
    web.memory.set_len(0).unwrap();
    web.kick(1);
    wait_for("the end of a guest without memory", || place.ctl("show").out.contains("web is disabled"));
    drop(web);

    backend.signal(Signal::SIGTERM);
}

/// A guest that is told, and tells, by pipes and sockets in the place of eventfds.
fn hears_by_all_means(web: &mut Frontend, mut batch: Frontend) {
    let (_reader, writer) = std::io::pipe().unwrap();
    batch.send_longs(SET_VRING_CALL, &[0], &[writer.as_raw_fd()]);
    passes(web, &mut batch);
    let (ours, theirs) = UnixStream::pair().unwrap();
    batch.send_longs(SET_VRING_CALL, &[0], &[theirs.as_raw_fd()]);
    passes(web, &mut batch);
    batch.send_longs(SET_VRING_KICK, &[1], &[theirs.as_raw_fd()]);
    (&ours).write_all(&[1]).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    batch.send_longs(SET_VRING_KICK, &[0], &[reader.as_raw_fd()]);
    writer.write_all(&[1]).unwrap();
    passes(web, &mut batch);
}

fn is_changed(place: &Place, backend: &mut Backend, web: &mut Frontend, batch: &mut Frontend) {
    assert_done(&place.ctl("set web early_ack=always"), "");
    passes(batch, web);
    assert_done(&place.ctl("flows export web DIR/web.flows"), "10B written\n");
    assert_done(&place.ctl("flows import web DIR/web.flows"), "0 flows taken over\n");
    assert_done(&place.ctl("capture web DIR/web.pcap"), "");
    passes(web, batch);
    assert!(place.ctl("capture web --stop").out.contains("frames, "));
    assert_done(&place.ctl("set near rate=1Gbit/s"), "");

    let listener = UnixListener::bind(place.path("calls.sock")).unwrap();
    assert_done(&place.ctl("reload DIR/more.toml"), "4 changes\n");
    let mut late = guest(&place.path("late.sock"));
    let mut calls = called(&listener);
    passes(&mut late, &mut calls);
    backend.signal(Signal::SIGHUP);
    backend.logs("policy.toml reloaded: ");
    place.write("policy.toml", &policy().replace("weight = 30", "weight = 0"));
    backend.signal(Signal::SIGHUP);
    backend.logs("the running policy stays");
    place.write("policy.toml", &more());
    backend.signal(Signal::SIGHUP);
    backend.logs("policy.toml reloaded: 2 changes");

    let mut scraper = TcpStream::connect(backend.metrics.as_ref().unwrap()).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    scraper.read_to_string(&mut page).unwrap();
    assert!(page.contains("fairlane_vif_weight"), "{page}");
    passes(web, batch);
}

/// CAP_CHOWN in a set of capabilities.
const CHOWN: u64 = 1;

/// A set of a thread's capabilities, as `/proc` says.
fn capabilities(set: &str, status: &str) -> u64 {
    let text = status.lines().find_map(|line| line.strip_prefix(set)).unwrap().trim();
    u64::from_str_radix(text, 16).unwrap()
}

/// Waits until each thread has begun, the first that it does being to give up what it does not need.
fn confined_threads(backend: &Backend) -> Vec<(Pid, String, String)> {
    let mut threads = Vec::new();
    wait_for("threads that are confined", || {
        threads = backend.threads();
        threads.iter().all(|(_, _, status)| status.contains("Seccomp:\t2\n"))
    });
    threads
}

#[test]
fn where_no_socket_has_an_owner_no_capability_is_left() {
    let place = place();
    place.write("policy.toml", &policy().replace(&of_own_group("group = GROUP\n"), ""));
    let can_give = capabilities("CapEff:", &std::fs::read_to_string("/proc/self/status").unwrap()) & CHOWN != 0;
    let backend = place.up();
    assert!(backend.began.contains("no capability is left of "), "{}", backend.began);
    for (_, name, status) in confined_threads(&backend) {
        let held = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(|set| capabilities(set, &status));
        assert_eq!(held, [0; 4], "{name}");
    }
    let without = "vif `batch`: this backend began without owners and groups of sockets and gave up CAP_CHOWN: restart it with such \
                   a policy\n";
    match place.ctl("reload DIR/more.toml") {
        refused if can_give => assert_refused(&refused, 1, without),
        done => assert_done(&done, "4 changes\n"),
    }
}

#[test]
fn sockets_are_given_to_others_by_a_confined_backend() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if capabilities("CapEff:", &status) & CHOWN == 0 {
        // Past the test harness, which shows only what failed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs root, to give sockets to others");
        return;
    }
    let place = place();
    let owned =
        |by: &str| policy().replace(&of_own_group("group = GROUP\n"), &format!("owner = {by}\nmode = \"0600\"\n"));
    place.write("policy.toml", &owned("\"root\""));
    let mut backend = place.up();
    let of = || {
        let info = place.path("batch.sock").metadata().unwrap();
        (info.uid(), info.mode() & 0o777)
    };
    assert_eq!(of(), (0, 0o600));
    // A worker makes it, in the place of the one before.
    place.write("other.toml", &owned("64001"));
    assert_done(&place.ctl("reload DIR/other.toml"), "2 changes\n");
    assert_eq!(of(), (64001, 0o600));
    // A name that it knows, and one that it does not.
    backend.signal(Signal::SIGHUP);
    backend.logs("policy.toml reloaded: 2 changes");
    assert_eq!(of(), (0, 0o600));
    place.write("other.toml", &owned("\"nobody\""));
    let unknown = "vif `batch`: owner: a confined backend knows no users but those it started with: give the number of `nobody`, or \
                   restart it\n";
    assert_refused(&place.ctl("reload DIR/other.toml"), 1, unknown);
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.ends(), Some(0));
}

#[test]
fn no_thread_keeps_what_it_does_not_need() {
    let place = place();
    let can_give = capabilities("CapEff:", &std::fs::read_to_string("/proc/self/status").unwrap()) & CHOWN != 0;
    let left = if can_give { "CAP_CHOWN alone, to give sockets to their owners, is" } else { "no capability is" };
    let mut backend = place.up();
    for said in [&format!("{left} left of "), "system calls of its kind (seccomp)"] {
        assert!(backend.began.contains(said), "{}", backend.began);
    }
    let listener = UnixListener::bind(place.path("calls.sock")).unwrap();
    // A client has a thread as well, and so has a vif that came later.
    let _client = UnixStream::connect(place.path("control.sock")).unwrap();
    assert_done(&place.ctl("reload DIR/more.toml"), "2 changes\n");
    let _called = called(&listener);
    let threads = confined_threads(&backend);
    let mut names: Vec<&str> = threads.iter().map(|(_, name, _)| name.as_str()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, ["fairlane", "fairlane-contro", "fairlane-log", "fairlane-metric", "fairlane-worker"]);
    for (_, name, status) in &threads {
        let field = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim();
        let makes_sockets = ["fairlane", "fairlane-contro", "fairlane-worker"].contains(&name.as_str());
        let kept = if can_give && makes_sockets { CHOWN } else { 0 };
        let held = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(|set| capabilities(set, status));
        assert_eq!(held, [0, kept, kept, 0], "{name}");
        assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"), "{name}");
    }
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.ends(), Some(0));
}

#[test]
fn a_confined_backend_does_all_its_work() {
    let place = place();
    let mut backend = place.up();
    work(&place, &mut backend);
    let log = backend.rest_of_log();
    assert!(!log.contains("system call"), "{log}");
    assert_eq!(backend.ends(), Some(0));
}

#[test]
fn what_was_given_up_is_refused_with_what_would_be_right() {
    let (place, elsewhere) = (place(), tempfile::tempdir().unwrap());
    let backend = place.up();
    // Where the kernel has no Landlock, this is what the backend says, and there is nothing to refuse.
    if backend.began.contains("this kernel has no Landlock") {
        return;
    }
    let other = elsewhere.path().to_str().unwrap();
    let right = "this backend may write and read files below DIR only: name one there\n";
    let denied = format!("cannot write to {other}/web.pcap: Permission denied (os error 13); {right}");
    assert_refused(&place.ctl(&format!("capture web {other}/web.pcap")), 1, &denied);
    assert_done(&place.ctl("set web early_ack=true"), "");
    let denied = format!("cannot take flows over from /etc/passwd: Permission denied (os error 13); {right}");
    assert_refused(&place.ctl("flows import web /etc/passwd"), 1, &denied);
    place.write("more.toml", &more().replace("DIR/late.sock", &format!("{other}/late.sock")));
    let denied = format!(
        "vif `late`: socket {other}/late.sock: Permission denied (os error 13); this backend may make sockets in directories only \
         that it knew when it started (DIR): name one there, or restart it\n"
    );
    assert_refused(&place.ctl("reload DIR/more.toml"), 1, &denied);
    assert!(std::fs::read_dir(elsewhere.path()).unwrap().next().is_none());
    assert!(!place.ctl("show").out.contains("\nlate "), "nothing changed");
}

/// A backend on a kernel that lacks what this one has: calls that a filter of this thread's answers so are such to its children.
#[test]
fn where_the_kernel_lacks_something_the_backend_serves_and_says_so() {
    let unknown = json!({ "lacking": { "mismatch_action": "allow", "match_action": { "errno": Errno::ENOSYS as u32 }, "filter": [
        { "syscall": "landlock_create_ruleset" },
        { "syscall": "seccomp" },
        { "syscall": "prctl", "args": [{ "index": 0, "type": "dword", "op": "eq", "val": libc::PR_SET_SECCOMP }] },
    ] } });
    let filters = compile_from_json(unknown.to_string().as_bytes(), TargetArch::x86_64).unwrap();
    let place = place();
    let started = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            apply_filter(&filters["lacking"]).unwrap();
            place.up()
        });
        thread.join()
    });
    let backend = started.unwrap();
    for lacks in [
        "WARN fairlane_engine::confinement::paths: not confined: any path can be opened, as this kernel has no Landlock",
        "WARN fairlane_engine::confinement: not confined: any system call can be made, as this kernel has no seccomp filters",
    ] {
        assert!(backend.began.contains(lacks), "{}", backend.began);
    }
    // What it has is in force.
    for (_, name, status) in backend.threads() {
        assert_eq!(capabilities("CapEff:", &status) & !CHOWN, 0, "{name}");
    }
    let (mut web, mut batch) = (guest(&place.path("web.sock")), guest(&place.path("batch.sock")));
    passes(&mut web, &mut batch);
}

#[test]
fn a_state_directory_takes_captures() {
    let (place, state) = (place(), tempfile::tempdir().unwrap());
    let state = state.path().to_str().unwrap();
    let _backend = place.up_with("", &[("STATE_DIRECTORY", state)]);
    assert_done(&place.ctl(&format!("capture web {state}/web.pcap")), "");
    assert_done(&place.ctl("capture web --stop"), "0 frames, 24B written\n");
}

#[test]
fn nothing_is_given_up_where_that_is_not_wanted() {
    let (place, elsewhere) = (place(), tempfile::tempdir().unwrap());
    let backend = place.up_with("--unconfined", &[]);
    assert!(backend.began.contains("not confined, because of --unconfined"), "{}", backend.began);
    assert!(backend.threads().iter().all(|(_, _, status)| status.contains("Seccomp:\t0\n")));
    assert_done(&place.ctl(&format!("capture web {}/web.pcap", elsewhere.path().display())), "");
}
