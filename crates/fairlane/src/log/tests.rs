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

/// Says to the program, when it is run again, that it is to fail.
const AGAIN: &str = "FAIRLANE_A_WORKER_FAILS";

/// Runs this test program again for one test, with its log in a pipe, and answers what it ended with.
fn again(test: &str, log: PipeWriter) -> Option<i32> {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "--nocapture", test])
        .env(AGAIN, "1")
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::null())
        .stderr(log);
    program.status().unwrap().code()
}

/// Has a worker panic in a process that logs as `fairlane up` does.
fn fail() {
    let _log = start(EnvFilter::new("info")).unwrap();
    let bridge = Bridge::new("near", Config::default(), sched::build(SchedulerKind::Fair, None, Nanos(0)));
    let worker = Worker::start(vec![bridge], Monotonic::new(), None).unwrap();
    let _ = worker.call(|_| panic!("on purpose"));
    // The process ends between the panic and here, or while this waits. To panic here could wait for who reads.
    std::thread::sleep(Duration::from_secs(60));
    std::process::exit(1);
}

#[test]
fn the_last_words_of_a_process_that_fails_come_out() {
    if std::env::var_os(AGAIN).is_some() {
        return fail();
    }
    let (mut log, writer) = io::pipe().unwrap();
    assert_eq!(again("log::tests::the_last_words_of_a_process_that_fails_come_out", writer), Some(70));
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    assert!(said.contains("on purpose"), "{said}");
    assert!(said.lines().last().unwrap().ends_with("the worker of near panicked"), "{said}");
}

#[test]
fn a_process_that_fails_ends_though_nobody_reads_its_log() {
    if std::env::var_os(AGAIN).is_some() {
        return fail();
    }
    let (log, writer) = full_pipe();
    assert_eq!(again("log::tests::a_process_that_fails_ends_though_nobody_reads_its_log", writer), Some(70));
    drop(log);
}

/// A pipe that takes no byte more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    const BYTES: usize = 4096;
    let (reader, mut writer) = io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(BYTES as i32)).unwrap();
    writer.write_all(&[b'\n'; BYTES]).unwrap();
    (reader, writer)
}
