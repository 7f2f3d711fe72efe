use super::*;
use fairlane_core::sched;
use fairlane_core::sched::SchedulerKind;
use fairlane_core::switch::Config;
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::Monotonic;
use fairlane_engine::worker::Worker;
use nix::fcntl::{FcntlArg, fcntl};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The environment variable that makes the test program, when run again, fail on purpose.
const FAIL: &str = "FAIRLANE_A_WORKER_FAILS";

/// Runs this test program again for one test, with its log in a pipe. Returns its exit status.
fn run_again(test: &str, log: PipeWriter) -> Option<i32> {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "--nocapture", test])
        .env(FAIL, "1")
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::null())
        .stderr(log);
    program.status().unwrap().code()
}

/// Makes a worker panic in a process that logs like `fairlane up`.
fn fail() {
    let _log = start(EnvFilter::new("info"), Format::Text).unwrap();
    let bridge = Bridge::new("near", Config::default(), sched::build(SchedulerKind::Fair, None, Nanos(0)));
    let worker = Worker::start(vec![bridge], Monotonic::new(), None).unwrap();
    let _ = worker.call(|_| panic!("on purpose"));
    // The process ends before this line, or during the sleep. A panic here could block on the pipe.
    std::thread::sleep(Duration::from_secs(60));
    std::process::exit(1);
}

#[test]
fn the_last_lines_of_a_failing_process_are_written() {
    if std::env::var_os(FAIL).is_some() {
        return fail();
    }
    let (mut log, writer) = io::pipe().unwrap();
    assert_eq!(run_again("log::tests::the_last_lines_of_a_failing_process_are_written", writer), Some(70));
    let mut lines = String::new();
    log.read_to_string(&mut lines).unwrap();
    assert!(lines.contains("on purpose"), "{lines}");
    assert!(lines.lines().last().unwrap().ends_with("the worker of near panicked"), "{lines}");
}

#[test]
fn a_failing_process_ends_even_if_nobody_reads_its_log() {
    if std::env::var_os(FAIL).is_some() {
        return fail();
    }
    let (log, writer) = full_pipe();
    assert_eq!(run_again("log::tests::a_failing_process_ends_even_if_nobody_reads_its_log", writer), Some(70));
    drop(log);
}

/// A pipe that is full.
fn full_pipe() -> (PipeReader, PipeWriter) {
    const BYTES: usize = 4096;
    let (reader, mut writer) = io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(BYTES as i32)).unwrap();
    writer.write_all(&[b'\n'; BYTES]).unwrap();
    (reader, writer)
}
