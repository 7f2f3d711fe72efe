//! Successors that fail, and clients that only say that they are one: the former process serves on, as if nothing had happened.

use crate::daemon::{Daemon, write_policy};
use crate::manager::Manager;
use crate::queues;
use libtest_mimic::Failed;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal::{self, SIGKILL};
use nix::sys::signal::kill;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a successor asks for.
const REQUEST: &[u8] = b"{\"protocol\":1,\"request\":{\"hand_over\":{\"format\":1}}}\n";

/// Bytes of a record (`port/src/handover.rs`).
const RECORD: usize = 256;

/// Asks a backend to hand over to this process. Returns the connection, after the backend agreed.
fn ask(daemon: &Daemon) -> io::Result<UnixStream> {
    let mut former = UnixStream::connect(daemon.control())?;
    former.write_all(REQUEST)?;
    let mut reply = [0; 12];
    former.read_exact(&mut reply)?;
    assert_eq!(&reply, b"{\"ok\":null}\n");
    Ok(former)
}

/// Is given everything, and leaves without serving it.
pub(crate) fn takes_all_and_leaves(daemon: &Daemon) -> io::Result<()> {
    let mut former = ask(daemon)?;
    let mut record = [0; RECORD];
    // The last one has no name.
    while {
        former.read_exact(&mut record)?;
        record[1] != 0
    } {}
    Ok(())
}

/// A successor that stops before it begins.
fn successor(policy: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "kill -STOP $$; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_fairlane"), "up", "--take-over"]);
    command.args(["--log", "off"]).arg(policy).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs a successor, and kills it after some system calls of its main thread, counted from the first by which it is given something.
fn killed_after(successor: &mut Command, calls: u32) -> Result<(), Failed> {
    let mut child = successor.spawn()?;
    let pid = Pid::from_raw(child.id() as i32);
    waitpid(pid, Some(WaitPidFlag::WUNTRACED))?;
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
    kill(pid, Signal::SIGCONT)?;
    let mut seen = 0;
    while seen < 2 * calls {
        let signal = match waitpid(pid, Some(WaitPidFlag::__WALL))? {
            WaitStatus::PtraceSyscall(_) => {
                let is_given = ptrace::getregs(pid)?.orig_rax == libc::SYS_recvmsg as u64;
                seen += u32::from(seen > 0 || is_given);
                None
            }
            WaitStatus::Stopped(_, Signal::SIGSTOP) | WaitStatus::PtraceEvent(..) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            other => return Err(format!("the successor was not killed: {other:?}").into()),
        };
        ptrace::syscall(pid, signal)?;
    }
    kill(pid, Signal::SIGKILL)?;
    child.wait()?;
    Ok(())
}

const VIF: &str = "[[vif]]\nname = \"NAME\"\nsocket = \"DIR/NAME.sock\"\nearly_ack = true\n";

pub(crate) fn serves_on() -> Result<(), Failed> {
    let home = tempfile::tempdir()?;
    let vif = |name: &str| VIF.replace("NAME", name);
    let observe = "[observe]\nsocket = \"DIR/observe.sock\"\n";
    let policy =
        format!("control = \"DIR/control.sock\"\n{observe}[[link]]\nname = \"lan\"\n{}{}", vif("one"), vif("two"));
    let mut service = Manager::start(home.path(), &policy);
    let connect = |name: &str| UnixStream::connect(home.path().join(name));
    let mut frontends = [connect("one.sock")?, connect("two.sock")?];
    let held = ["vif one", "vif one", "vif two", "vif two"];
    let mut goes_on = |service: &mut Manager| {
        frontends.iter_mut().try_for_each(queues)?;
        assert_eq!(service.daemon.snapshot().vifs.len(), 2);
        assert_eq!(service.held(), held);
        Ok::<_, Failed>(())
    };
    let pid = service.daemon.pid();

    // Clients that leave at any point, or that may not.
    drop(UnixStream::connect(service.daemon.control())?.write_all(REQUEST));
    goes_on(&mut service)?;
    drop(ask(&service.daemon)?);
    goes_on(&mut service)?;
    let mut early = ask(&service.daemon)?;
    early.read_exact(&mut [0; RECORD + 7])?;
    drop(early);
    goes_on(&mut service)?;
    takes_all_and_leaves(&service.daemon)?;
    goes_on(&mut service)?;
    for (socket, request, why) in [
        ("control.sock", "{\"format\":2}", "it gives in format 1, and the client takes 2"),
        ("observe.sock", "{\"format\":1}", "read-only"),
        ("control.sock", "{}", "missing field"),
    ] {
        let mut client = connect(socket)?;
        writeln!(client, "{{\"protocol\":1,\"request\":{{\"hand_over\":{request}}}}}")?;
        let mut reply = String::new();
        BufReader::new(client).read_line(&mut reply)?;
        assert!(reply.contains(why), "{reply}");
    }
    goes_on(&mut service)?;

    // A successor that is killed, sooner or later after it asked.
    for calls in [1, 20, 60] {
        killed_after(&mut successor(&home.path().join("policy.toml")), calls)?;
        goes_on(&mut service)?;
    }

    // Policies that are wrong, or cannot be served.
    for wrong in ["weight = 0\n", "[[vif]]\nname = \"three\"\nsocket = \"/nowhere/three.sock\"\n"] {
        write_policy(home.path(), &format!("{policy}{wrong}"));
        assert!(!service.hand_over());
        goes_on(&mut service)?;
    }
    write_policy(home.path(), &policy);
    let drop_in = home.path().join("policy.d/three.toml");
    fs::create_dir(home.path().join("policy.d"))?;
    fs::write(&drop_in, "[[vif]]\nname = \"three\"\nweight = 0\n")?;
    assert!(!service.hand_over());
    goes_on(&mut service)?;
    fs::remove_file(&drop_in)?;
    assert_eq!(service.daemon.pid(), pid);
    assert!(!service.daemon.log().contains("early ack goes on without"), "{}", service.daemon.log());

    // One that serves; its manager then holds what it held, and a process after it goes on.
    assert!(service.hand_over(), "{}", service.daemon.log());
    goes_on(&mut service)?;
    service.wait_until_kept();
    service.restart(SIGKILL);
    goes_on(&mut service)?;

    // One with another policy: what it does not name is closed.
    write_policy(home.path(), &policy.replace(&vif("two"), &vif("three")));
    assert!(service.hand_over(), "{}", service.daemon.log());
    queues(&mut frontends[0])?;
    assert!(service.sees_end(&mut frontends[1])?, "the connection of a vif that is gone ends");
    assert!(connect("two.sock").is_err() && !home.path().join("two.sock").exists());
    queues(&mut connect("three.sock")?)
}
