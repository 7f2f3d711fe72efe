//! The agent's side of the protocol: reads requests, runs each in a thread, writes messages.

use std::{
    io::{self, BufRead, Write},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde::Deserialize;

use crate::{
    Command, Event, Message, Outcome, Request, Step, encode, program::spawn, relay::Relay, script::EventCounts,
    tty::open_raw, work,
};

/// Why serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The host requested it.
    PowerOff,
    /// The input ended.
    HangUp,
}

/// Reports that the agent is ready, then serves requests until [`Command::PowerOff`] or the end of the input. Does not wait for
/// requests that still run.
///
/// # Errors
/// Those of reading the input. Errors of the output are ignored: if it fails, the input ends too.
pub fn serve(mut input: impl BufRead, output: impl Write + Send + 'static) -> io::Result<End> {
    let session = Session::start(output)?;
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(End::HangUp);
        }
        match serde_json::from_slice(&line) {
            Ok(Request { to: None, run: Command::PowerOff, id, .. }) => {
                session.send(id, Event::Done(Outcome::PoweringOff));
                return Ok(End::PowerOff);
            }
            Ok(request) => session.handle(request),
            Err(error) => {
                if let Ok(WithId { id }) = serde_json::from_slice(&line) {
                    session.send(id, Event::Failed(format!("not a request this agent knows: {error}")));
                }
            }
        }
    }
}

/// Reports that the agent is ready, then replays a script: executes each step once the events before it have been sent.
///
/// # Errors
/// Those of [`Command::Hello`], by which it reports that it is ready.
pub fn replay(script: Vec<Step>, output: impl Write + Send + 'static) -> io::Result<End> {
    let session = Session::start(output)?;
    for Step { after, request } in script {
        session.sent.wait_for(&after);
        if matches!(request, Request { to: None, run: Command::PowerOff, .. }) {
            session.send(request.id, Event::Done(Outcome::PoweringOff));
            return Ok(End::PowerOff);
        }
        session.handle(request);
    }
    Ok(End::HangUp)
}

/// The output, the counts of sent events, and the attached guests. Clones belong to the same session.
#[derive(Clone)]
struct Session {
    output: Arc<Mutex<dyn Write + Send>>,
    sent: EventCounts,
    relay: Relay,
}

impl Session {
    fn start(output: impl Write + Send + 'static) -> io::Result<Session> {
        let output: Arc<Mutex<dyn Write + Send>> = Arc::new(Mutex::new(output));
        let session = Session { output, sent: EventCounts::default(), relay: Relay::default() };
        session.send(0, Event::Done(work::hello()?));
        Ok(session)
    }

    fn send(&self, id: u64, event: Event) {
        let counts = event.may_cause_requests();
        let mut output = self.output.lock().expect("no thread panics while it writes");
        let _ = output.write_all(&encode(&Message { id, event })).and_then(|()| output.flush());
        if counts {
            self.sent.add(id);
        }
    }

    /// Starts the work of a request.
    fn handle(&self, request: Request) {
        let (id, session) = (request.id, self.clone());
        let attach =
            |name: &str, console| self.relay.attach(id, name, console, move |id, event| session.send(id, event));
        let forwarded = match request {
            Request { to: Some(ref guest), .. } => self.relay.forward(&guest.clone(), request),
            Request { run: Command::Attach { name, console }, .. } => {
                open_raw(&console).and_then(|console| attach(&name, console))
            }
            Request { run: Command::Spawn { name, argv }, .. } => {
                spawn(&argv).and_then(|console| attach(&name, console))
            }
            Request { delay, run, .. } => {
                let session = self.clone();
                thread::spawn(move || {
                    let outcome = wait(delay).and_then(|()| work::run(run, |event| session.send(id, event)));
                    session.send(id, outcome.map_or_else(|error| Event::Failed(error.to_string()), Event::Done));
                });
                return;
            }
        };
        if let Err(error) = forwarded {
            self.send(id, Event::Failed(error.to_string()));
        }
    }
}

/// Sleeps for a delay in seconds.
fn wait(delay: f64) -> io::Result<()> {
    let wrong = |error| io::Error::other(format!("delay is {delay}: {error}"));
    Duration::try_from_secs_f64(delay).map(thread::sleep).map_err(wrong)
}

/// Any line with an id, to answer an invalid request.
#[derive(Deserialize)]
struct WithId {
    id: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_load::{ServeSpec, busy, delay, disk, ping, transfer, udp};
    use proptest::prelude::*;
    use std::{
        fs,
        io::{BufReader, Lines},
        net::Shutdown,
        os::unix::net::UnixStream,
        process,
    };

    /// The host's side of a connection to an agent in a thread.
    struct Host {
        host: UnixStream,
        lines: Lines<BufReader<UnixStream>>,
        agent: thread::JoinHandle<io::Result<End>>,
    }

    impl Host {
        fn connect() -> Host {
            let (host, guest) = UnixStream::pair().unwrap();
            let input = BufReader::new(guest.try_clone().unwrap());
            let agent = thread::spawn(move || serve(input, guest));
            let lines = BufReader::new(host.try_clone().unwrap()).lines();
            let mut host = Host { host, lines, agent };
            assert!(matches!(host.receive(), Message { id: 0, event: Event::Done(Outcome::Hello { .. }) }));
            host
        }

        fn send(&mut self, line: &[u8]) {
            self.host.write_all(line).unwrap();
        }

        fn receive(&mut self) -> Message {
            serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
        }

        fn close(self) -> End {
            self.host.shutdown(Shutdown::Write).unwrap();
            self.agent.join().unwrap().unwrap()
        }
    }

    #[test]
    fn requests_run_concurrently() {
        let mut host = Host::connect();
        host.send(b"{\"id\":1,\"run\":{\"udp_receive\":{\"port\":0,\"interval\":0.1,\"seconds\":0.5}}}\n");
        assert_eq!(host.receive(), Message { id: 1, event: Event::Started });
        host.send(&encode(&Request { id: 2, to: None, delay: 0.0, run: Command::Counters }));
        assert!(matches!(host.receive(), Message { id: 2, event: Event::Done(Outcome::Counters(_)) }));
        assert!(matches!(host.receive(), Message { id: 1, event: Event::Done(Outcome::Received(_)) }));
        assert_eq!(host.close(), End::HangUp);
    }

    /// Runs a command; returns its outcome and the events before that.
    fn outcome(host: &mut Host, id: u64, run: Command) -> (Outcome, Vec<Event>) {
        host.send(&encode(&Request { id, to: None, delay: 0.0, run }));
        let mut before = Vec::new();
        loop {
            match host.receive() {
                Message { event: Event::Done(outcome), id: done } if done == id => return (outcome, before),
                Message { event, .. } => before.push(event),
            }
        }
    }

    #[test]
    fn every_load_program_can_be_run() {
        let mut host = Host::connect();
        let busy = busy::Spec { share: 0.5, seconds: 0.05 };
        assert!(matches!(outcome(&mut host, 1, Command::Busy(busy)), (Outcome::Consumed(_), _)));
        let path = std::env::temp_dir().join(format!("fairlane-agent-disk-{}", std::process::id()));
        let (operation, block, span) = (disk::Operation::Write, 4096, 1 << 16);
        let spec = disk::Spec { path: path.clone(), operation, block, span, workers: 1, interval: 0.1, seconds: 0.1 };
        let (done, before) = outcome(&mut host, 2, Command::Disk(spec));
        fs::remove_file(path).unwrap();
        assert!(matches!(done, Outcome::Disk(_)) && before == [Event::Started]);

        let to = |port| ([127, 0, 0, 1], port).into();
        let first = ports();
        host.send(&encode(&Request {
            id: 3,
            to: None,
            delay: 0.0,
            run: Command::TransferServe(ServeSpec { port: first, seconds: 20.0 }),
        }));
        assert_eq!(host.receive(), Message { id: 3, event: Event::Started });
        let spec = transfer::Spec { to: to(first), size: 1000, count: 2, seconds: 20.0, pause: 0.0, kept: false };
        let (done, _) = outcome(&mut host, 4, Command::TransferSend(spec));
        assert!(matches!(done, Outcome::Transfers(transfers) if transfers.len() == 2));
        host.send(&encode(&Request {
            id: 5,
            to: None,
            delay: 0.0,
            run: Command::DelayServe(ServeSpec { port: first, seconds: 20.0 }),
        }));
        assert!(
            matches!(host.receive(), Message { id: 5, event: Event::Failed(reason) } if reason.contains(&first.to_string()))
        );
        host.send(&encode(&Request {
            id: 6,
            to: None,
            delay: 0.0,
            run: Command::DelayServe(ServeSpec { port: first + 1, seconds: 20.0 }),
        }));
        assert_eq!(host.receive(), Message { id: 6, event: Event::Started });
        let spec = delay::Spec { to: to(first + 1), size: 64, count: 3, interval: 0.001, patience: 0.01 };
        let (done, _) = outcome(&mut host, 7, Command::DelaySend(spec));
        assert!(matches!(done, Outcome::Delays(delays) if delays.seconds.len() == 3));

        let spec = ping::Spec { to: std::net::Ipv4Addr::LOCALHOST, count: 0, interval: 0.01, patience: 1.0 };
        host.send(&encode(&Request { id: 8, to: None, delay: 0.0, run: Command::Ping(spec) }));
        assert!(matches!(host.receive().event, Event::Failed(reason) if reason.contains("count")));
        assert_eq!(host.close(), End::HangUp);
    }

    /// The first of eight ports that no other run of these tests uses, below the range of ephemeral ports.
    fn ports() -> u16 {
        10_000 + (std::process::id() % 2500) as u16 * 8
    }

    /// Two concurrent senders of one agent are two flows.
    #[test]
    fn several_flows_are_several_requests() {
        let mut host = Host::connect();
        let receive = fairlane_load::ReceiveSpec { port: ports() + 4, interval: 0.2, seconds: 1.0 };
        host.send(&encode(&Request { id: 1, to: None, delay: 0.0, run: Command::UdpReceive(receive) }));
        assert_eq!(host.receive(), Message { id: 1, event: Event::Started });
        let to = ([127, 0, 0, 1], ports() + 4).into();
        for id in [2, 3] {
            let run = Command::UdpSend(udp::SendSpec { to, size: 1472, rate: Some(1e6), seconds: 0.2 });
            host.send(&encode(&Request { id, to: None, delay: 0.0, run }));
        }
        let received = loop {
            if let Event::Done(Outcome::Received(received)) = host.receive().event {
                break received;
            }
        };
        assert_eq!(received.sources.len(), 2);
        assert_eq!(host.close(), End::HangUp);
    }

    #[test]
    fn an_invalid_request_is_answered_with_its_error() {
        let mut host = Host::connect();
        host.send(b"{\"id\":7,\"run\":\"fly\"}\n");
        assert!(matches!(host.receive(), Message { id: 7, event: Event::Failed(reason) } if reason.contains("fly")));
        host.send(
            b"{\"id\":8,\"run\":{\"udp_send\":{\"to\":\"127.0.0.1:9\",\"size\":1,\"rate\":null,\"seconds\":1}}}\n",
        );
        assert!(matches!(host.receive(), Message { id: 8, event: Event::Failed(reason) } if reason.contains("size")));
        host.send(b"{\"id\":9,\"run\":\"power_off\"}\n");
        assert!(matches!(host.receive(), Message { id: 9, event: Event::Done(Outcome::PoweringOff) }));
        assert_eq!(host.agent.join().unwrap().unwrap(), End::PowerOff);
    }

    #[test]
    fn programs_run_and_files_are_written() {
        let mut host = Host::connect();
        host.send(b"{\"id\":1,\"run\":{\"run\":{\"argv\":[\"sh\",\"-c\",\"echo out; echo err >&2; exit 3\"]}}}\n");
        let (stdout, stderr) = ("out\n".to_owned(), "err\n".to_owned());
        let event = Event::Done(Outcome::Ran { status: Some(3), stdout, stderr });
        assert_eq!(host.receive(), Message { id: 1, event });
        let file = std::env::temp_dir().join(format!("fairlane-agent-write-{}", process::id()));
        let write = |path: &std::path::Path| Command::Write { path: path.to_owned(), text: "word".to_owned() };
        host.send(&encode(&Request { id: 2, to: None, delay: 0.0, run: write(&file) }));
        assert_eq!(host.receive(), Message { id: 2, event: Event::Done(Outcome::Written) });
        assert_eq!(fs::read_to_string(&file).unwrap(), "word");
        fs::remove_file(file).unwrap();
        for run in [write("/proc/no/such".as_ref()), Command::Run { argv: vec!["/no/such".to_owned()] }] {
            host.send(&encode(&Request { id: 3, to: None, delay: 0.0, run }));
            let Message { id: 3, event: Event::Failed(reason) } = host.receive() else { panic!("it should fail") };
            assert!(reason.contains("no/such"), "{reason}");
        }
        host.send(b"{\"id\":4,\"run\":{\"run\":{\"argv\":[]}}}\n");
        assert!(matches!(host.receive(), Message { id: 4, event: Event::Failed(_) }));
        assert_eq!(host.close(), End::HangUp);
    }

    /// A guest that reports that it is ready, answers one request with the line it received, and exits after the next.
    const GUEST: &str = r#"
        printf '{"id":0,"event":{"done":"powering_off"}}\n' >&0
        read -r line
        printf 'noise\n{"id":2,"event":{"failed":"%s"}}\n' "$(printf %s "$line" | tr -d '"')" >&0
        read -r line"#;

    #[test]
    fn requests_for_a_guest_are_forwarded_and_answered() {
        let mut host = Host::connect();
        let request = |id, to: Option<&str>, run| encode(&Request { id, to: to.map(str::to_owned), delay: 0.0, run });
        let argv = ["sh", "-c", GUEST].map(str::to_owned).to_vec();
        host.send(&request(1, None, Command::Spawn { name: "guest".to_owned(), argv }));
        assert_eq!(host.receive(), Message { id: 1, event: Event::Done(Outcome::PoweringOff) });
        host.send(&request(2, Some("guest"), Command::Hello));
        let got = "{id:2,run:hello}".to_owned();
        assert_eq!(host.receive(), Message { id: 2, event: Event::Failed(got) });
        // It exits without an answer to this one.
        let end = "its console was closed\n    noise".to_owned();
        host.send(&request(3, Some("guest"), Command::Hello));
        assert_eq!(host.receive(), Message { id: 3, event: Event::Gone(end) });
        host.send(&request(4, Some("nobody"), Command::Hello));
        assert!(matches!(host.receive(), Message { id: 4, event: Event::Failed(reason) } if reason.contains("nobody")));
        assert_eq!(host.close(), End::HangUp);
    }

    #[test]
    fn a_replayed_step_waits_for_the_events_before_it() {
        let (host, guest) = UnixStream::pair().unwrap();
        let run = |share| Command::Busy(busy::Spec { share, seconds: 0.05 });
        let step = |after: &[(u64, usize)], id, delay, run| Step {
            after: after.iter().copied().collect(),
            request: Request { id, to: None, delay, run },
        };
        let script = vec![
            step(&[(0, 1)], 1, 0.1, run(0.1)),
            step(&[], 2, 0.0, Command::Counters),
            // Waits for both to be done.
            step(&[(1, 1), (2, 1)], 3, 0.0, Command::PowerOff),
        ];
        let text: Vec<u8> = script.iter().flat_map(encode).collect();
        assert_eq!(crate::read_script(&text[..]).unwrap(), script);
        assert_eq!(replay(script, guest).unwrap(), End::PowerOff);
        let messages = BufReader::new(host).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let ids: Vec<u64> = messages.map(|message: Message| message.id).collect();
        assert_eq!(ids, [0, 2, 1, 3]);
    }

    #[test]
    fn a_replayed_step_does_not_wait_for_samples() {
        let (host, guest) = UnixStream::pair().unwrap();
        let port = ports() + 5;
        let receive = fairlane_load::ReceiveSpec { port, interval: 0.05, seconds: 0.5 };
        let to = ([127, 0, 0, 1], port).into();
        let send = udp::SendSpec { to, size: 1472, rate: Some(1e6), seconds: 0.1 };
        let step = |after: &[(u64, usize)], id, run| Step {
            after: after.iter().copied().collect(),
            request: Request { id, to: None, delay: 0.0, run },
        };
        let script = vec![
            step(&[(0, 1)], 1, Command::UdpReceive(receive)),
            step(&[(1, 1)], 2, Command::UdpSend(send)),
            // Waits for the receiver, which has started, to end.
            step(&[(1, 1), (2, 1)], 3, Command::PowerOff),
        ];
        assert_eq!(replay(script, guest).unwrap(), End::PowerOff);
        let messages = BufReader::new(host).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let (counted, samples): (Vec<Message>, Vec<Message>) =
            messages.partition(|message: &Message| message.event.may_cause_requests());
        let ids: Vec<u64> = counted.iter().map(|message| message.id).collect();
        assert_eq!((ids, samples.is_empty()), (vec![0, 1, 2, 1, 3], false));
    }

    #[test]
    fn a_program_is_run_until_it_prints_the_text() {
        let mut host = Host::connect();
        let counter = std::env::temp_dir().join(format!("fairlane-agent-await-{}", process::id()));
        let line = format!("echo x >> {0}; wc -l < {0}", counter.display());
        let argv = ["sh", "-c", &line].map(str::to_owned).to_vec();
        let until = |text: &str, seconds| Command::Await { argv: argv.clone(), text: text.to_owned(), seconds };
        let (Outcome::Ran { stdout, .. }, _) = outcome(&mut host, 1, until("3", 20.0)) else { panic!("ran") };
        assert_eq!(stdout.trim(), "3");
        let (Outcome::Text(text), _) = outcome(&mut host, 2, Command::Read { path: counter.clone() }) else { panic!() };
        assert_eq!(text, "x\nx\nx\n");
        host.send(&encode(&Request { id: 3, to: None, delay: 0.0, run: until("never", 0.0) }));
        assert!(matches!(host.receive().event, Event::Failed(reason) if reason.contains("no \"never\" within 0 s")));
        fs::remove_file(counter).unwrap();
        host.send(&encode(&Request { id: 4, to: None, delay: -1.0, run: Command::Counters }));
        assert!(matches!(host.receive().event, Event::Failed(reason) if reason.contains("delay")));
        assert_eq!(host.close(), End::HangUp);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Any bytes between requests that are no request are skipped.
        #[test]
        fn noise_is_skipped(noise in prop::collection::vec(any::<u8>().prop_filter("a brace", |b| *b != b'{'), 0..200)) {
            let mut host = Host::connect();
            host.send(&noise);
            host.send(b"\n");
            host.send(&encode(&Request { id: 5, to: None, delay: 0.0, run: Command::Hello }));
            prop_assert_eq!(host.receive().id, 5);
            prop_assert_eq!(host.close(), End::HangUp);
        }
    }
}
