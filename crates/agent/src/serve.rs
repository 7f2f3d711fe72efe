//! The agent's side of the talk: reads requests, runs each in a thread, writes messages.

use std::{
    io::{self, BufRead, Write},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde::Deserialize;

use crate::{
    Command, Event, Message, Outcome, Request, Step, encode, program::spawn, relay::Relay, script::Told, tty::open_raw,
    work,
};

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
    let talk = Talk::begin(output)?;
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(End::HangUp);
        }
        match serde_json::from_slice(&line) {
            Ok(Request { to: None, run: Command::PowerOff, id, .. }) => {
                talk.say(id, Event::Done(Outcome::PoweringOff));
                return Ok(End::PowerOff);
            }
            Ok(request) => talk.take(request),
            Err(error) => {
                if let Ok(Addressed { id }) = serde_json::from_slice(&line) {
                    talk.say(id, Event::Failed(format!("not a request this agent knows: {error}")));
                }
            }
        }
    }
}

/// Says that the guest is ready, then does what the script says, each step when its cause has happened.
///
/// # Errors
/// Those of beginning.
pub fn perform(script: Vec<Step>, output: impl Write + Send + 'static) -> io::Result<End> {
    let talk = Talk::begin(output)?;
    for Step { after, request } in script {
        talk.told.take(&after);
        if matches!(request, Request { to: None, run: Command::PowerOff, .. }) {
            talk.say(request.id, Event::Done(Outcome::PoweringOff));
            return Ok(End::PowerOff);
        }
        talk.take(request);
    }
    Ok(End::HangUp)
}

/// What the agent has said, the work under way, and the guests behind it. Clones are of the same talk.
#[derive(Clone)]
struct Talk {
    output: Arc<Mutex<dyn Write + Send>>,
    told: Told,
    relay: Relay,
}

impl Talk {
    fn begin(output: impl Write + Send + 'static) -> io::Result<Talk> {
        let output: Arc<Mutex<dyn Write + Send>> = Arc::new(Mutex::new(output));
        let talk = Talk { output, told: Told::default(), relay: Relay::default() };
        talk.say(0, Event::Done(work::hello()?));
        Ok(talk)
    }

    fn say(&self, id: u64, event: Event) {
        let moves = event.moves();
        let mut output = self.output.lock().expect("no thread panics while it writes");
        let _ = output.write_all(&encode(&Message { id, event })).and_then(|()| output.flush());
        if moves {
            self.told.add(id);
        }
    }

    /// Begins to do what a request asks.
    fn take(&self, request: Request) {
        let (id, talk) = (request.id, self.clone());
        let attach = |name: &str, console| self.relay.attach(id, name, console, move |id, event| talk.say(id, event));
        let passed = match request {
            Request { to: Some(ref guest), .. } => self.relay.pass(&guest.clone(), request),
            Request { run: Command::Attach { name, console }, .. } => {
                open_raw(&console).and_then(|console| attach(&name, console))
            }
            Request { run: Command::Spawn { name, argv }, .. } => {
                spawn(&argv).and_then(|console| attach(&name, console))
            }
            Request { delay, run, .. } => {
                let talk = self.clone();
                thread::spawn(move || {
                    let outcome = wait(delay).and_then(|()| work::run(run, |event| talk.say(id, event)));
                    talk.say(id, outcome.map_or_else(|error| Event::Failed(error.to_string()), Event::Done));
                });
                return;
            }
        };
        if let Err(error) = passed {
            self.say(id, Event::Failed(error.to_string()));
        }
    }
}

/// Lets a delay pass.
fn wait(delay: f64) -> io::Result<()> {
    let wrong = |error| io::Error::other(format!("delay is {delay}: {error}"));
    Duration::try_from_secs_f64(delay).map(thread::sleep).map_err(wrong)
}

/// A line with an id, whatever else it holds.
#[derive(Deserialize)]
struct Addressed {
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
        talk.say(&encode(&Request { id: 2, to: None, delay: 0.0, run: Command::Counters }));
        assert!(matches!(talk.hear(), Message { id: 2, event: Event::Done(Outcome::Counters(_)) }));
        assert!(matches!(talk.hear(), Message { id: 1, event: Event::Done(Outcome::Received(_)) }));
        assert_eq!(talk.end(), End::HangUp);
    }

    /// Runs a command to its end, taking note of the events before that.
    fn outcome(talk: &mut Talk, id: u64, run: Command) -> (Outcome, Vec<Event>) {
        talk.say(&encode(&Request { id, to: None, delay: 0.0, run }));
        let mut before = Vec::new();
        loop {
            match talk.hear() {
                Message { event: Event::Done(outcome), id: done } if done == id => return (outcome, before),
                Message { event, .. } => before.push(event),
            }
        }
    }

    #[test]
    fn every_program_is_reached() {
        let mut talk = Talk::begin();
        let busy = busy::Spec { share: 0.5, seconds: 0.05 };
        assert!(matches!(outcome(&mut talk, 1, Command::Busy(busy)), (Outcome::Consumed(_), _)));
        let path = std::env::temp_dir().join(format!("fairlane-agent-disk-{}", std::process::id()));
        let (operation, block, span) = (disk::Operation::Write, 4096, 1 << 16);
        let spec = disk::Spec { path: path.clone(), operation, block, span, workers: 1, interval: 0.1, seconds: 0.1 };
        let (done, before) = outcome(&mut talk, 2, Command::Disk(spec));
        fs::remove_file(path).unwrap();
        assert!(matches!(done, Outcome::Disk(_)) && before == [Event::Started]);

        let to = |port| ([127, 0, 0, 1], port).into();
        let first = ports();
        talk.say(&encode(&Request {
            id: 3,
            to: None,
            delay: 0.0,
            run: Command::TransferServe(ServeSpec { port: first, seconds: 20.0 }),
        }));
        assert_eq!(talk.hear(), Message { id: 3, event: Event::Started });
        let spec = transfer::Spec { to: to(first), size: 1000, count: 2, seconds: 20.0, pause: 0.0, kept: false };
        let (done, _) = outcome(&mut talk, 4, Command::TransferSend(spec));
        assert!(matches!(done, Outcome::Transfers(transfers) if transfers.len() == 2));
        talk.say(&encode(&Request {
            id: 5,
            to: None,
            delay: 0.0,
            run: Command::DelayServe(ServeSpec { port: first, seconds: 20.0 }),
        }));
        assert!(
            matches!(talk.hear(), Message { id: 5, event: Event::Failed(reason) } if reason.contains(&first.to_string()))
        );
        talk.say(&encode(&Request {
            id: 6,
            to: None,
            delay: 0.0,
            run: Command::DelayServe(ServeSpec { port: first + 1, seconds: 20.0 }),
        }));
        assert_eq!(talk.hear(), Message { id: 6, event: Event::Started });
        let spec = delay::Spec { to: to(first + 1), size: 64, count: 3, interval: 0.001, patience: 0.01 };
        let (done, _) = outcome(&mut talk, 7, Command::DelaySend(spec));
        assert!(matches!(done, Outcome::Delays(delays) if delays.seconds.len() == 3));

        let spec = ping::Spec { to: std::net::Ipv4Addr::LOCALHOST, count: 0, interval: 0.01, patience: 1.0 };
        talk.say(&encode(&Request { id: 8, to: None, delay: 0.0, run: Command::Ping(spec) }));
        assert!(matches!(talk.hear().event, Event::Failed(reason) if reason.contains("count")));
        assert_eq!(talk.end(), End::HangUp);
    }

    /// The first of eight ports that neither another run of these tests has, nor a connection's own end.
    fn ports() -> u16 {
        10_000 + (std::process::id() % 2500) as u16 * 8
    }

    /// Two senders at once from one agent: what a source calls several connections of one guest.
    #[test]
    fn several_flows_are_several_requests() {
        let mut talk = Talk::begin();
        let receive = fairlane_load::ReceiveSpec { port: ports() + 4, interval: 0.2, seconds: 1.0 };
        talk.say(&encode(&Request { id: 1, to: None, delay: 0.0, run: Command::UdpReceive(receive) }));
        assert_eq!(talk.hear(), Message { id: 1, event: Event::Started });
        let to = ([127, 0, 0, 1], ports() + 4).into();
        for id in [2, 3] {
            let run = Command::UdpSend(udp::SendSpec { to, size: 1472, rate: Some(1e6), seconds: 0.2 });
            talk.say(&encode(&Request { id, to: None, delay: 0.0, run }));
        }
        let received = loop {
            if let Event::Done(Outcome::Received(received)) = talk.hear().event {
                break received;
            }
        };
        assert_eq!(received.sources.len(), 2);
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
        talk.say(&encode(&Request { id: 2, to: None, delay: 0.0, run: write(&file) }));
        assert_eq!(talk.hear(), Message { id: 2, event: Event::Done(Outcome::Written) });
        assert_eq!(fs::read_to_string(&file).unwrap(), "word");
        fs::remove_file(file).unwrap();
        for run in [write("/proc/no/such".as_ref()), Command::Run { argv: vec!["/no/such".to_owned()] }] {
            talk.say(&encode(&Request { id: 3, to: None, delay: 0.0, run }));
            let Message { id: 3, event: Event::Failed(reason) } = talk.hear() else { panic!("it is to fail") };
            assert!(reason.contains("no/such"), "{reason}");
        }
        talk.say(b"{\"id\":4,\"run\":{\"run\":{\"argv\":[]}}}\n");
        assert!(matches!(talk.hear(), Message { id: 4, event: Event::Failed(_) }));
        assert_eq!(talk.end(), End::HangUp);
    }

    /// A guest that says it is ready, and answers one request with the line it got; then it ends.
    const GUEST: &str = r#"
        printf '{"id":0,"event":{"done":"powering_off"}}\n' >&0
        read -r line
        printf 'noise\n{"id":2,"event":{"failed":"%s"}}\n' "$(printf %s "$line" | tr -d '"')" >&0
        read -r line"#;

    #[test]
    fn requests_for_a_guest_are_passed_on_and_answered() {
        let mut talk = Talk::begin();
        let request = |id, to: Option<&str>, run| encode(&Request { id, to: to.map(str::to_owned), delay: 0.0, run });
        let argv = ["sh", "-c", GUEST].map(str::to_owned).to_vec();
        talk.say(&request(1, None, Command::Spawn { name: "guest".to_owned(), argv }));
        assert_eq!(talk.hear(), Message { id: 1, event: Event::Done(Outcome::PoweringOff) });
        talk.say(&request(2, Some("guest"), Command::Hello));
        let got = "{id:2,run:hello}".to_owned();
        assert_eq!(talk.hear(), Message { id: 2, event: Event::Failed(got) });
        // It ends while this one is unanswered.
        let end = "its console was closed\n    noise".to_owned();
        talk.say(&request(3, Some("guest"), Command::Hello));
        assert_eq!(talk.hear(), Message { id: 3, event: Event::Gone(end) });
        talk.say(&request(4, Some("nobody"), Command::Hello));
        assert!(matches!(talk.hear(), Message { id: 4, event: Event::Failed(reason) } if reason.contains("nobody")));
        assert_eq!(talk.end(), End::HangUp);
    }

    #[test]
    fn a_script_is_performed_in_the_order_of_its_causes() {
        let (host, guest) = UnixStream::pair().unwrap();
        let run = |share| Command::Busy(busy::Spec { share, seconds: 0.05 });
        let step = |after: &[(u64, usize)], id, delay, run| Step {
            after: after.iter().copied().collect(),
            request: Request { id, to: None, delay, run },
        };
        let script = vec![
            step(&[(0, 1)], 1, 0.1, run(0.1)),
            step(&[], 2, 0.0, Command::Counters),
            // Both have to be done.
            step(&[(1, 1), (2, 1)], 3, 0.0, Command::PowerOff),
        ];
        let text: Vec<u8> = script.iter().flat_map(encode).collect();
        assert_eq!(crate::read_script(&text[..]).unwrap(), script);
        assert_eq!(perform(script, guest).unwrap(), End::PowerOff);
        let messages = BufReader::new(host).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let ids: Vec<u64> = messages.map(|message: Message| message.id).collect();
        assert_eq!(ids, [0, 2, 1, 3]);
    }

    #[test]
    fn samples_are_no_cause_of_a_step() {
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
            // The receiver has started, and is to end first.
            step(&[(1, 1), (2, 1)], 3, Command::PowerOff),
        ];
        assert_eq!(perform(script, guest).unwrap(), End::PowerOff);
        let messages = BufReader::new(host).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let (moving, samples): (Vec<Message>, Vec<Message>) =
            messages.partition(|message: &Message| message.event.moves());
        let ids: Vec<u64> = moving.iter().map(|message| message.id).collect();
        assert_eq!((ids, samples.is_empty()), (vec![0, 1, 2, 1, 3], false));
    }

    #[test]
    fn a_program_is_run_until_it_prints_the_text() {
        let mut talk = Talk::begin();
        let counter = std::env::temp_dir().join(format!("fairlane-agent-await-{}", process::id()));
        let line = format!("echo x >> {0}; wc -l < {0}", counter.display());
        let argv = ["sh", "-c", &line].map(str::to_owned).to_vec();
        let until = |text: &str, seconds| Command::Await { argv: argv.clone(), text: text.to_owned(), seconds };
        let (Outcome::Ran { stdout, .. }, _) = outcome(&mut talk, 1, until("3", 20.0)) else { panic!("ran") };
        assert_eq!(stdout.trim(), "3");
        let (Outcome::Text(text), _) = outcome(&mut talk, 2, Command::Read { path: counter.clone() }) else { panic!() };
        assert_eq!(text, "x\nx\nx\n");
        talk.say(&encode(&Request { id: 3, to: None, delay: 0.0, run: until("never", 0.0) }));
        assert!(matches!(talk.hear().event, Event::Failed(reason) if reason.contains("no \"never\" within 0 s")));
        fs::remove_file(counter).unwrap();
        talk.say(&encode(&Request { id: 4, to: None, delay: -1.0, run: Command::Counters }));
        assert!(matches!(talk.hear().event, Event::Failed(reason) if reason.contains("delay")));
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
            talk.say(&encode(&Request { id: 5, to: None, delay: 0.0, run: Command::Hello }));
            prop_assert_eq!(talk.hear().id, 5);
            prop_assert_eq!(talk.end(), End::HangUp);
        }
    }
}
