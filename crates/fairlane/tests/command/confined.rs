//! A confined backend: the privileges that it keeps, and that it can do all of its work.

use crate::frontend::{F_PROTOCOL, F_VERSION_1, Frontend, GET_VRING_BASE, SEND_RARP, SET_VRING_CALL, log_file};
use crate::guests::{accept_guest, exchange_frame, guest, wait_for};
use crate::workspace::{Backend, POLICY, Workspace, assert_done, assert_refused};
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

/// The vif of a guest at the other end of the wire.
const BATCH: &str = r#"[[vif]]
name = "batch"
link = "far"
socket = "DIR/batch.sock"
group = GROUP
"#;

/// Vifs that a reload adds: one whose socket the backend creates, and one that it connects to.
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

/// A workspace with these policies.
pub(crate) fn with_policies() -> Workspace {
    let workspace = Workspace::new();
    workspace.write("policy.toml", &policy());
    workspace.write("more.toml", &more());
    workspace.write_drop_in("red.toml", "[[tenant]]\nname = \"red\"\n");
    workspace
}

/// Replaces GROUP with the group of the user who runs the tests.
fn with_own_group(text: &str) -> String {
    text.replace("GROUP", &getegid().to_string())
}

/// The policy: two guests, at the two ends of a wire.
fn policy() -> String {
    with_own_group(&format!("metrics = \"127.0.0.1:0\"\n{POLICY}{BATCH}"))
}

/// The policy after a reload.
fn more() -> String {
    policy() + &with_own_group(MORE)
}

/// Makes a backend use all of its functions, and stops it. Nothing may fail.
pub(crate) fn work(workspace: &Workspace, backend: &mut Backend) {
    let (mut web, mut batch) = (guest(&workspace.path("web.sock")), guest(&workspace.path("batch.sock")));
    exchange_frame(&mut web, &mut batch);
    exchange_frame(&mut batch, &mut web);
    use_all_notifications(&mut web, batch);
    let mut batch = guest(&workspace.path("batch.sock"));
    change_settings(workspace, backend, &mut web, &mut batch);

    // As a hypervisor does when it migrates a guest. The reply has the ring's index.
    let log = log_file(1 << 20);
    batch.log_all(F_VERSION_1 | F_PROTOCOL, 2, &log, 0);
    exchange_frame(&mut web, &mut batch);
    batch.send(SEND_RARP, 1, &[0x52, 0x54, 0, 0, 0, 2, 0, 0], &[]);
    batch.send(GET_VRING_BASE, 1, &[1, 0, 0, 0, 0, 0, 0, 0], &[]);
    assert_eq!(batch.reply().len(), 8);

    // The guest's memory is truncated while the backend uses it.
    web.memory.set_len(0).unwrap();
    web.kick(1);
    wait_for("a guest without memory to be disabled", || workspace.ctl("show").out.contains("web is disabled"));
    drop(web);

    backend.signal(Signal::SIGTERM);
}

/// A guest that is notified through a socket instead of an eventfd, and kicks.
fn use_all_notifications(web: &mut Frontend, mut batch: Frontend) {
    let (_ours, theirs) = UnixStream::pair().unwrap();
    batch.send_longs(SET_VRING_CALL, &[0], &[theirs.as_raw_fd()]);
    exchange_frame(web, &mut batch);
    (0..2).for_each(|queue| batch.kick(queue));
    exchange_frame(web, &mut batch);
}

fn change_settings(workspace: &Workspace, backend: &mut Backend, web: &mut Frontend, batch: &mut Frontend) {
    assert_done(&workspace.ctl("set web early_ack=always"), "");
    exchange_frame(batch, web);
    assert_done(&workspace.ctl("flows export web DIR/web.flows"), "10B written\n");
    assert_done(&workspace.ctl("flows import web DIR/web.flows"), "0 flows taken over\n");
    assert_done(&workspace.ctl("capture web DIR/web.pcap"), "");
    exchange_frame(web, batch);
    assert!(workspace.ctl("capture web --stop").out.contains("frames, "));
    assert_done(&workspace.ctl("set near rate=1Gbit/s"), "");
    assert_done(&workspace.ctl("add link dmz"), "");
    for name in ["one", "two"] {
        assert_done(&workspace.ctl(&format!("add vif {name} link=dmz socket=DIR/{name}.sock")), "");
    }
    let (mut one, mut two) = (guest(&workspace.path("one.sock")), guest(&workspace.path("two.sock")));
    exchange_frame(&mut one, &mut two);
    assert_done(&workspace.ctl("remove vif one"), "");
    assert_done(&workspace.ctl("remove vif two"), "");
    assert_done(&workspace.ctl("remove link dmz"), "");

    let listener = UnixListener::bind(workspace.path("calls.sock")).unwrap();
    assert_done(&workspace.ctl("reload DIR/more.toml"), "4 changes\n");
    let mut late = guest(&workspace.path("late.sock"));
    let mut calls = accept_guest(&listener);
    exchange_frame(&mut late, &mut calls);
    backend.signal(Signal::SIGHUP);
    backend.read_log_until("policy.toml reloaded: ");
    workspace.write("policy.toml", &policy().replace("weight = 30", "weight = 0"));
    backend.signal(Signal::SIGHUP);
    backend.read_log_until("the running policy is kept");
    workspace.write("policy.toml", &more());
    backend.signal(Signal::SIGHUP);
    backend.read_log_until("policy.toml reloaded: 2 changes");

    let mut scraper = TcpStream::connect(backend.metrics.as_ref().unwrap()).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    scraper.read_to_string(&mut page).unwrap();
    assert!(page.contains("fairlane_vif_weight"), "{page}");
    exchange_frame(web, batch);
}

/// CAP_CHOWN in a set of capabilities.
const CHOWN: u64 = 1;

/// A capability set of a thread, from its `/proc` status.
fn capabilities(set: &str, status: &str) -> u64 {
    let text = status.lines().find_map(|line| line.strip_prefix(set)).unwrap().trim();
    u64::from_str_radix(text, 16).unwrap()
}

/// Waits until every thread is confined, which is the first thing it does. Those that close what a frontend left come and go.
fn confined_threads(backend: &Backend) -> Vec<(Pid, String, String)> {
    let mut threads = Vec::new();
    wait_for("all threads to be confined", || {
        threads = backend.threads();
        threads.retain(|(_, name, _)| name != "fairlane-close");
        threads.iter().all(|(_, _, status)| status.contains("Seccomp:\t2\n"))
    });
    threads
}

#[test]
fn without_socket_owners_no_capability_is_kept() {
    let workspace = with_policies();
    workspace.write("policy.toml", &policy().replace(&with_own_group("group = GROUP\n"), ""));
    let can_chown = capabilities("CapEff:", &std::fs::read_to_string("/proc/self/status").unwrap()) & CHOWN != 0;
    let backend = workspace.up();
    assert!(backend.startup_log.contains("no capability is left of "), "{}", backend.startup_log);
    for (_, name, status) in confined_threads(&backend) {
        let held = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(|set| capabilities(set, &status));
        assert_eq!(held, [0; 4], "{name}");
    }
    let error = "vif `batch`: this backend started without owners and groups of sockets and gave up CAP_CHOWN: restart it with \
                   this policy\n";
    match workspace.ctl("reload DIR/more.toml") {
        refused if can_chown => assert_refused(&refused, 1, error),
        done => assert_done(&done, "4 changes\n"),
    }
}

#[test]
fn a_confined_backend_changes_the_owners_of_sockets() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if capabilities("CapEff:", &status) & CHOWN == 0 {
        // Written directly, since the test harness shows only the output of failed tests.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this test needs root, to change the owners of sockets");
        return;
    }
    let workspace = with_policies();
    let owned =
        |by: &str| policy().replace(&with_own_group("group = GROUP\n"), &format!("owner = {by}\nmode = \"0600\"\n"));
    workspace.write("policy.toml", &owned("\"root\""));
    let mut backend = workspace.up();
    let owner_and_mode = || {
        let info = workspace.path("batch.sock").metadata().unwrap();
        (info.uid(), info.mode() & 0o777)
    };
    assert_eq!(owner_and_mode(), (0, 0o600));
    // A worker creates the new socket in place of the old one.
    workspace.write("other.toml", &owned("64001"));
    assert_done(&workspace.ctl("reload DIR/other.toml"), "2 changes\n");
    assert_eq!(owner_and_mode(), (64001, 0o600));
    // A user name that the backend knows, and one that it does not know.
    backend.signal(Signal::SIGHUP);
    backend.read_log_until("policy.toml reloaded: 2 changes");
    assert_eq!(owner_and_mode(), (0, 0o600));
    workspace.write("other.toml", &owned("\"nobody\""));
    let unknown = "vif `batch`: owner: a confined backend can look up no new users: give the number of `nobody`, or \
                   restart it\n";
    assert_refused(&workspace.ctl("reload DIR/other.toml"), 1, unknown);
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.wait(), Some(0));
}

#[test]
fn no_thread_keeps_privileges_it_does_not_need() {
    let workspace = with_policies();
    let can_chown = capabilities("CapEff:", &std::fs::read_to_string("/proc/self/status").unwrap()) & CHOWN != 0;
    let kept = if can_chown { "CAP_CHOWN alone, to give sockets to their owners, is" } else { "no capability is" };
    let mut backend = workspace.up();
    for message in [&format!("{kept} left of "), "system calls of its kind (seccomp)"] {
        assert!(backend.startup_log.contains(message), "{}", backend.startup_log);
    }
    let listener = UnixListener::bind(workspace.path("calls.sock")).unwrap();
    // A control client has its own thread, and so has a vif that was added later.
    let _client = UnixStream::connect(workspace.path("control.sock")).unwrap();
    assert_done(&workspace.ctl("reload DIR/more.toml"), "2 changes\n");
    let _guest = accept_guest(&listener);
    let threads = confined_threads(&backend);
    let mut names: Vec<&str> = threads.iter().map(|(_, name, _)| name.as_str()).collect();
    names.sort();
    names.dedup();
    let known = ["", "-contro", "-log", "-start", "-web", "-worker"].map(|name| format!("fairlane{name}"));
    assert_eq!(names, known);
    for (_, name, status) in &threads {
        let field = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim();
        let creates_sockets =
            ["fairlane", "fairlane-contro", "fairlane-start", "fairlane-worker"].contains(&name.as_str());
        let kept = if can_chown && creates_sockets { CHOWN } else { 0 };
        let held = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(|set| capabilities(set, status));
        assert_eq!(held, [0, kept, kept, 0], "{name}");
        assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"), "{name}");
    }
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.wait(), Some(0));
}

#[test]
fn a_confined_backend_does_all_its_work() {
    let workspace = with_policies();
    let mut backend = workspace.up();
    work(&workspace, &mut backend);
    let log = backend.rest_of_log();
    assert!(!log.contains("system call"), "{log}");
    assert_eq!(backend.wait(), Some(0));
}

#[test]
fn paths_outside_the_permitted_directories_are_refused_with_advice() {
    let (workspace, elsewhere) = (with_policies(), tempfile::tempdir().unwrap());
    let backend = workspace.up();
    // If the kernel has no Landlock, the backend says so, and refuses no path.
    if backend.startup_log.contains("this kernel has no Landlock") {
        return;
    }
    let other = elsewhere.path().to_str().unwrap();
    let advice = "this backend may write and read files below DIR only: name one there\n";
    let denied = format!("cannot write to {other}/web.pcap: Permission denied (os error 13); {advice}");
    assert_refused(&workspace.ctl(&format!("capture web {other}/web.pcap")), 1, &denied);
    assert_done(&workspace.ctl("set web early_ack=true"), "");
    let denied = format!("cannot take flows over from /etc/passwd: Permission denied (os error 13); {advice}");
    assert_refused(&workspace.ctl("flows import web /etc/passwd"), 1, &denied);
    workspace.write("more.toml", &more().replace("DIR/late.sock", &format!("{other}/late.sock")));
    let denied = format!(
        "vif `late`: socket {other}/late.sock: Permission denied (os error 13); this backend may make sockets in directories only \
         that it knew when it started (DIR): name one there, or restart it\n"
    );
    assert_refused(&workspace.ctl("reload DIR/more.toml"), 1, &denied);
    assert!(std::fs::read_dir(elsewhere.path()).unwrap().next().is_none());
    let shown = workspace.ctl("show").out;
    assert!(!shown.contains("\nlate  "), "the policy changed: {shown}");
    assert!(shown.ends_with("\nlate is not served: it could not be opened, and the log says why\n"), "{shown}");
}

/// A backend on a kernel without some features: this thread's filter makes their system calls fail, also for its children.
#[test]
fn a_backend_on_a_kernel_without_confinement_serves_and_warns() {
    let filter = json!({ "lacking": { "mismatch_action": "allow", "match_action": { "errno": Errno::ENOSYS as u32 }, "filter": [
        { "syscall": "landlock_create_ruleset" },
        { "syscall": "seccomp" },
        { "syscall": "prctl", "args": [{ "index": 0, "type": "dword", "op": "eq", "val": libc::PR_SET_SECCOMP }] },
    ] } });
    let filters = compile_from_json(filter.to_string().as_bytes(), TargetArch::x86_64).unwrap();
    let workspace = with_policies();
    let started = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            apply_filter(&filters["lacking"]).unwrap();
            workspace.up()
        });
        thread.join()
    });
    let backend = started.unwrap();
    for warning in [
        "WARN fairlane_engine::confinement::paths: not confined: any path can be opened, as this kernel has no Landlock",
        "WARN fairlane_engine::confinement: not confined: any system call can be made, as this kernel has no seccomp filters",
    ] {
        assert!(backend.startup_log.contains(warning), "{}", backend.startup_log);
    }
    // The features that the kernel has are used.
    for (_, name, status) in backend.threads() {
        assert_eq!(capabilities("CapEff:", &status) & !CHOWN, 0, "{name}");
    }
    let (mut web, mut batch) = (guest(&workspace.path("web.sock")), guest(&workspace.path("batch.sock")));
    exchange_frame(&mut web, &mut batch);
}

#[test]
fn captures_may_be_in_the_state_directory() {
    let (workspace, state) = (with_policies(), tempfile::tempdir().unwrap());
    let state = state.path().to_str().unwrap();
    let _backend = workspace.up_with("", &[("STATE_DIRECTORY", state)]);
    assert_done(&workspace.ctl(&format!("capture web {state}/web.pcap")), "");
    assert_done(&workspace.ctl("capture web --stop"), "0 frames, 24B written\n");
}

#[test]
fn an_unconfined_backend_keeps_all_privileges() {
    let (workspace, elsewhere) = (with_policies(), tempfile::tempdir().unwrap());
    let backend = workspace.up_with("--unconfined", &[]);
    assert!(backend.startup_log.contains("not confined, because of --unconfined"), "{}", backend.startup_log);
    assert!(backend.threads().iter().all(|(_, _, status)| status.contains("Seccomp:\t0\n")));
    assert_done(&workspace.ctl(&format!("capture web {}/web.pcap", elsewhere.path().display())), "");
}
