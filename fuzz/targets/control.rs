//! Arbitrary lines from a client of the control socket: each line gets one reply, the backend executes the request or reports why not,
//! and it serves the next client.
#![no_main]

use fairlane_engine::Engine;
use fairlane_engine::control::{
    Add, Answer, Client, Error, FlowsFile, Reload, Remove, Request, Server, Set, StartCapture,
};
use fairlane_policy::{Card, File, Files, Kind, Policy, Uplink, Vif};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The text that input bytes from 128 on stand for, so that inputs form meaningful requests. Bytes beyond this list are not valid text.
const WORDS: [&str; 61] = [
    r#"{"protocol":1,"request":"#,
    r#"{"protocol":2,"request":"#,
    "\"show\"}\n",
    "\"flows\"}\n",
    "\"stop\"}\n",
    r#"{"set":{"target":""#,
    r#"","key":""#,
    r#"","value":""#,
    "\"}}}\n",
    r#"{"reload":{"name":"policy.toml","text":""#,
    r#"{"start_capture":{"vif":""#,
    r#"{"stop_capture":{"vif":""#,
    r#"{"export_flows":{"vif":""#,
    r#"{"import_flows":{"vif":""#,
    r#"","file":""#,
    r#"","snap":"#,
    "web",
    "batch",
    "lan",
    "weight",
    "min_rate",
    "max_rate",
    "burst",
    "early_ack",
    "rate",
    "scheduler",
    "isolate",
    "true",
    "always",
    "wrr",
    "20Mbit/s",
    "200",
    "none",
    "\\n",
    "\\\"",
    "[[link]]\\nname = \\\"lan\\\"\\n",
    "[[vif]]\\nname = \\\"web\\\"\\nsocket = \\\"DIRECTORY/web\\\"\\n",
    "[[vif]]\\nname = \\\"mail\\\"\\nsocket = \\\"DIRECTORY/mail\\\"\\n",
    "control = \\\"DIRECTORY/control\\\"\\n",
    "weight = 7\\n",
    "rate = \\\"1Mbit/s\\\"\\n",
    "early_ack = true\\n",
    "/",
    "[",
    "}",
    ",",
    r#"{"add":{"kind":"vif","name":""#,
    r#"{"add":{"kind":"tenant","name":""#,
    r#"{"add":{"kind":"link","name":""#,
    r#"{"remove":{"kind":"vif","name":""#,
    r#"{"remove":{"kind":"tenant","name":""#,
    r#"{"remove":{"kind":"link","name":""#,
    r#"","settings":[[""#,
    r#"",""#,
    r#""],[""#,
    r#""]],"replace":true}}}"#,
    "\"save\"}\n",
    r#"","drop_ins":[{"name":"a.toml","text":""#,
    "socket",
    "DIRECTORY/added",
    "red",
];

struct Bench {
    directory: tempfile::TempDir,
    engine: Engine,
    at_first: Policy,
    /// Serves lines, and passes the requests on to the engine, except requests that name files outside the directory.
    _server: Server,
    stream: BufReader<UnixStream>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

fuzz_target!(|input: &[u8]| {
    BENCH.with_borrow_mut(|bench| {
        let directory = bench.directory.path().to_str().unwrap();
        let mut said = Vec::new();
        for byte in input {
            match byte.checked_sub(128).map(usize::from) {
                None => said.push(*byte),
                Some(word) => match WORDS.get(word) {
                    Some(word) => said.extend(word.replace("DIRECTORY", directory).bytes()),
                    None => said.push(*byte),
                },
            }
        }
        said.push(b'\n');
        for line in said.split_inclusive(|byte| *byte == b'\n') {
            bench.stream.get_mut().write_all(line).unwrap();
            let mut answer = Vec::new();
            bench.stream.read_until(b'\n', &mut answer).unwrap();
            let Value::Object(answer) = serde_json::from_slice(&answer).unwrap() else {
                panic!("the reply is not an object")
            };
            assert!(answer.len() == 1 && (answer.contains_key("ok") || answer["error"] != ""));
        }
        bench.renew();
    });
});

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let vif = |name: &str| format!("[[vif]]\nname = {name:?}\nsocket = {:?}\n", directory.path().join(name));
        let control = directory.path().join("control");
        let text = format!(
            "control = {control:?}\n[[link]]\nname = \"lan\"\n{}early_ack = true\n{}",
            vif("web"),
            vif("batch")
        );
        let at_first = Policy::parse("policy.toml", &text).unwrap();
        let engine = Engine::start(at_first.clone()).unwrap();
        let path = directory.path().join("said");
        let client = Mutex::new(Client::connect(&control).unwrap());
        let place = directory.path().to_owned();
        let answer: Answer = Arc::new(move |request| {
            round_trip(&request);
            execute(&mut client.lock().unwrap(), request, &place).map_err(|error| match error {
                Error::Refused(sentence) => fairlane_engine::Error::Policy(sentence),
                gone => panic!("{gone}"),
            })
        });
        let server = Server::start(&path, answer).unwrap();
        let stream = BufReader::new(UnixStream::connect(&path).unwrap());
        Bench { directory, engine, at_first, _server: server, stream }
    }

    /// Restores the first policy, and removes captures and files.
    fn renew(&mut self) {
        for name in FILES.map(|name| self.directory.path().join(name)) {
            if std::fs::remove_file(&name).is_ok() {
                let mut client = Client::connect(&self.at_first.control).unwrap();
                for vif in &self.engine.policy().vifs {
                    let _ = client.stop_capture(&vif.name);
                }
            }
        }
        let policy = self.engine.policy();
        if policy != self.at_first {
            let first = &self.at_first;
            let mut client = Client::connect(&first.control).unwrap();
            // What a reload brought goes with the next one.
            let mut remove = |kind, name: &str| drop(client.remove(kind, name));
            let is_new = |vif: &&Vif| first.vifs.iter().all(|other| other.name != vif.name);
            policy.vifs.iter().filter(is_new).for_each(|vif| remove(Kind::Vif, &vif.name));
            self.engine.reload(first.clone()).unwrap();
            policy.tenants.iter().for_each(|tenant| remove(Kind::Tenant, &tenant.name));
            let links = policy.links.iter().filter(|link| first.link(&link.name).is_none());
            links.for_each(|link| remove(Kind::Link, &link.name));
            assert_eq!(self.engine.policy(), *first);
        }
        assert_eq!(self.engine.snapshot().unwrap().vifs.len(), 2);
    }
}

/// Checks that a request survives serialization.
fn round_trip(request: &Request) {
    let text = serde_json::to_string(request).unwrap();
    assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), *request);
}

/// Files that requests can name.
const FILES: [&str; 3] = ["0", "1", "2"];

/// Executes a request, restricted to files in the directory.
fn execute(client: &mut Client, request: Request, directory: &Path) -> Result<Value, Error> {
    let ours = |file: PathBuf| directory.join(FILES[file.as_os_str().len() % FILES.len()]);
    let done = |()| Value::Null;
    match request {
        Request::Show => Ok(serde_json::to_value(client.show()?)?),
        Request::Set(Set { target, key, value }) => client.set(&target, &key, &value).map(done),
        Request::Reload(reload) if is_within(&reload, directory) => client.load(&files(&reload)).map(Value::from),
        Request::Add(add) if adds_within(&add, directory) => client.add(add).map(done),
        Request::Remove(Remove { kind, name }) => client.remove(kind, &name).map(done),
        // There is no policy file.
        Request::Save => Ok(serde_json::to_value(client.save()?)?),
        Request::StartCapture(StartCapture { vif, file, snap, limit }) => {
            client.start_capture(&vif, &ours(file), snap, limit).map(done)
        }
        Request::StopCapture(stop) => Ok(serde_json::to_value(client.stop_capture(&stop.vif)?)?),
        Request::Flows => Ok(serde_json::to_value(client.flows()?)?),
        Request::ExportFlows(FlowsFile { vif, file }) => client.export_flows(&vif, &ours(file)).map(Value::from),
        Request::ImportFlows(FlowsFile { vif, file }) => client.import_flows(&vif, &ours(file)).map(Value::from),
        Request::Reload(_) | Request::Add(_) | Request::HandOver(_) | Request::Stop => Ok(Value::Null),
    }
}

/// The files of a reload.
fn files(reload: &Reload) -> Files {
    let drop_ins = reload.drop_ins.iter().cloned().map(File::from);
    Files::new(File::new(reload.name.as_str(), reload.text.as_str()), drop_ins.collect())
}

/// Whether files have mistakes, or all of their sockets are in the directory, and they have no uplink.
fn is_within(reload: &Reload, directory: &Path) -> bool {
    let Ok(loaded) = files(reload).load(&Files::default()) else { return true };
    let policy = loaded.policy;
    let is_ours = |card: &Card| matches!(card, Card::VhostUser { socket, .. } if socket.parent() == Some(directory));
    policy.vifs.iter().all(|vif| is_ours(&vif.card)) && policy.links.iter().all(|link| link.uplink == Uplink::None)
}

/// Whether a part has no uplink, and its socket, if any, is in the directory.
fn adds_within(add: &Add, directory: &Path) -> bool {
    add.settings.iter().all(|(key, value)| match key.as_str() {
        "socket" => Path::new(value).parent() == Some(directory),
        key => !key.starts_with("uplink"),
    })
}
