//! The agent's side of the talk: reads requests, runs each in a thread, writes messages.

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, BufRead, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{self, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use fairlane_load::{Progress, tcp, udp};
use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::{Command, Counters, Event, Message, Outcome, Request, encode, relay::Relay, tty::open_raw};

/// Why the talk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The host asked for it.
    PowerOff,
    /// The host is gone.
    HangUp,
}

/// Says that the guest is ready, then serves requests until one is [`Command::PowerOff`] or the input ends.
/// Requests that still run are left behind.
///
/// # Errors
/// Those of reading the input. An output that fails is the input's end as well, so its errors are not told apart.
pub fn serve(mut input: impl BufRead, output: impl Write + Send + 'static) -> io::Result<End> {
    let output = Arc::new(Mutex::new(output));
    let relay = Relay::default();
    let say = move |id, event| {
        let mut output = output.lock().expect("no thread panics while it writes");
        let _ = output.write_all(&encode(&Message { id, event })).and_then(|()| output.flush());
    };
    say(0, Event::Done(hello()?));
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(End::HangUp);
        }
        let Request { id, to, run } = match serde_json::from_slice(&line) {
            Ok(request) => request,
            Err(error) => {
                if let Ok(Addressed { id }) = serde_json::from_slice(&line) {
                    say(id, Event::Failed(format!("not a request this agent knows: {error}")));
                }
                continue;
            }
        };
        let say = say.clone();
        let passed = match (to, run) {
            (Some(guest), run) => relay.pass(&guest, Request { id, to: None, run }),
            (None, Command::PowerOff) => {
                say(id, Event::Done(Outcome::PoweringOff));
                return Ok(End::PowerOff);
            }
            (None, Command::Attach { name, console }) => {
                open_raw(&console).and_then(|console| relay.attach(id, &name, console, say.clone()))
            }
            (None, Command::Spawn { name, argv }) => {
                spawn(&argv).and_then(|console| relay.attach(id, &name, console, say.clone()))
            }
            (None, run) => {
                thread::spawn(move || {
                    let outcome = perform(run, |event| say(id, event));
                    say(id, outcome.map_or_else(|error| Event::Failed(error.to_string()), Event::Done));
                });
                continue;
            }
        };
        if let Err(error) = passed {
            say(id, Event::Failed(error.to_string()));
        }
    }
}

/// A line with an id, whatever else it holds.
#[derive(Deserialize)]
struct Addressed {
    id: u64,
}

fn perform(command: Command, say: impl Fn(Event)) -> io::Result<Outcome> {
    let progress = |progress| match progress {
        Progress::Started(_) => say(Event::Started),
        Progress::Sample(sample) => say(Event::Sample(sample)),
    };
    Ok(match command {
        Command::Hello => hello()?,
        Command::UdpSend(spec) => Outcome::Sent(udp::send(&spec)?),
        Command::UdpReceive(spec) => Outcome::Received(udp::receive(&spec, progress)?),
        Command::TcpSend(spec) => Outcome::Sent(tcp::send(&spec)?),
        Command::TcpReceive(spec) => Outcome::Received(tcp::receive(&spec, progress)?),
        Command::Counters => Outcome::Counters(Counters::read()?),
        Command::Run { argv } => run(&argv)?,
        Command::Write { path, text } => {
            fs::write(&path, text).map_err(|error| named(error, path.display()))?;
            Outcome::Written
        }
        Command::Attach { .. } | Command::Spawn { .. } | Command::PowerOff => {
            unreachable!("served where requests are read")
        }
    })
}

/// Starts a program with a socket as its standard input; answers the other end.
fn spawn(argv: &[String]) -> io::Result<File> {
    let (program, arguments) = words(argv)?;
    let (ours, theirs) = UnixStream::pair()?;
    let child = process::Command::new(program).args(arguments).stdin(OwnedFd::from(theirs)).spawn();
    let mut child = child.map_err(|error| named(error, program))?;
    // It lives as long as the socket's other end is open; its exit status tells nothing more.
    thread::spawn(move || child.wait());
    Ok(File::from(OwnedFd::from(ours)))
}

fn words(argv: &[String]) -> io::Result<(&String, &[String])> {
    argv.split_first().ok_or_else(|| io::Error::other("argv is empty: no program"))
}

fn run(argv: &[String]) -> io::Result<Outcome> {
    let (program, arguments) = words(argv)?;
    let output = process::Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| named(error, program))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Outcome::Ran { status: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
}

/// The error with the name of what it is about.
fn named(error: io::Error, what: impl Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn hello() -> io::Result<Outcome> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim_end().to_owned();
    let clock = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(Outcome::Hello { kernel, clock: std::time::Duration::from(clock).as_secs_f64(), pid: process::id() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{
        io::{BufReader, Lines},
        net::Shutdown,
    };

    struct Talk {
        host: UnixStream,
        lines: Lines<BufReader<UnixStream>>,
        agent: thread::JoinHandle<io::Result<End>>,
    }

    impl Talk {
        fn begin() -> Talk {
            let (host, guest) = UnixStream::pair().unwrap();
            let input = BufReader::new(guest.try_clone().unwrap());
            let agent = thread::spawn(move || serve(input, guest));
            let lines = BufReader::new(host.try_clone().unwrap()).lines();
            let mut talk = Talk { host, lines, agent };
            assert!(matches!(talk.hear(), Message { id: 0, event: Event::Done(Outcome::Hello { .. }) }));
            talk
        }

        fn say(&mut self, line: &[u8]) {
            self.host.write_all(line).unwrap();
        }

        fn hear(&mut self) -> Message {
            serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
        }

        fn end(self) -> End {
            self.host.shutdown(Shutdown::Write).unwrap();
            self.agent.join().unwrap().unwrap()
        }
    }

    #[test]
    fn requests_run_at_the_same_time() {
        let mut talk = Talk::begin();
        talk.say(b"{\"id\":1,\"run\":{\"udp_receive\":{\"port\":0,\"interval\":0.1,\"seconds\":0.5}}}\n");
        assert_eq!(talk.hear(), Message { id: 1, event: Event::Started });
        talk.say(&encode(&Request { id: 2, to: None, run: Command::Counters }));
        assert!(matches!(talk.hear(), Message { id: 2, event: Event::Done(Outcome::Counters(_)) }));
        assert!(matches!(talk.hear(), Message { id: 1, event: Event::Done(Outcome::Received(_)) }));
        assert_eq!(talk.end(), End::HangUp);
    }

    #[test]
    fn a_bad_request_is_answered_and_does_no_harm() {
        let mut talk = Talk::begin();
        talk.say(b"{\"id\":7,\"run\":\"fly\"}\n");
        assert!(matches!(talk.hear(), Message { id: 7, event: Event::Failed(reason) } if reason.contains("fly")));
        talk.say(
            b"{\"id\":8,\"run\":{\"udp_send\":{\"to\":\"127.0.0.1:9\",\"size\":1,\"rate\":null,\"seconds\":1}}}\n",
        );
        assert!(matches!(talk.hear(), Message { id: 8, event: Event::Failed(reason) } if reason.contains("size")));
        talk.say(b"{\"id\":9,\"run\":\"power_off\"}\n");
        assert!(matches!(talk.hear(), Message { id: 9, event: Event::Done(Outcome::PoweringOff) }));
        assert_eq!(talk.agent.join().unwrap().unwrap(), End::PowerOff);
    }

    #[test]
    fn programs_run_and_files_are_written() {
        let mut talk = Talk::begin();
        talk.say(b"{\"id\":1,\"run\":{\"run\":{\"argv\":[\"sh\",\"-c\",\"echo out; echo err >&2; exit 3\"]}}}\n");
        let (stdout, stderr) = ("out\n".to_owned(), "err\n".to_owned());
        let event = Event::Done(Outcome::Ran { status: Some(3), stdout, stderr });
        assert_eq!(talk.hear(), Message { id: 1, event });
        let file = std::env::temp_dir().join(format!("fairlane-agent-write-{}", process::id()));
        let write = |path: &std::path::Path| Command::Write { path: path.to_owned(), text: "word".to_owned() };
        talk.say(&encode(&Request { id: 2, to: None, run: write(&file) }));
        assert_eq!(talk.hear(), Message { id: 2, event: Event::Done(Outcome::Written) });
        assert_eq!(fs::read_to_string(&file).unwrap(), "word");
        fs::remove_file(file).unwrap();
        for run in [write("/proc/no/such".as_ref()), Command::Run { argv: vec!["/no/such".to_owned()] }] {
            talk.say(&encode(&Request { id: 3, to: None, run }));
            let Message { id: 3, event: Event::Failed(reason) } = talk.hear() else { panic!("it is to fail") };
            assert!(reason.contains("no/such"), "{reason}");
        }
        talk.say(b"{\"id\":4,\"run\":{\"run\":{\"argv\":[]}}}\n");
        assert!(matches!(talk.hear(), Message { id: 4, event: Event::Failed(_) }));
        assert_eq!(talk.end(), End::HangUp);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Noise between requests, whatever its bytes, is skipped.
        #[test]
        fn noise_is_skipped(noise in prop::collection::vec(any::<u8>().prop_filter("a brace", |b| *b != b'{'), 0..200)) {
            let mut talk = Talk::begin();
            talk.say(&noise);
            talk.say(b"\n");
            talk.say(&encode(&Request { id: 5, to: None, run: Command::Hello }));
            prop_assert_eq!(talk.hear().id, 5);
            prop_assert_eq!(talk.end(), End::HangUp);
        }
    }
}
