//! The client of the control protocol, used by `fairlane ctl` and `fairlane top`.

use super::protocol::{
    Add, Call, CaptureReport, DropIn, FlowsFile, HandOver, PROTOCOL, Reload, Remove, Reply, Request, Saved, Set,
    StartCapture, StopCapture,
};
use crate::snapshot::{FlowState, Snapshot};
use fairlane_policy::{File, Files, Kind};
use fairlane_port::handover;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a running backend.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No backend listens.
    #[error("no backend answers at {path}: {error}", path = .path.display())]
    NoBackend {
        /// The control socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The connection broke.
    #[error("the backend at {path} does not answer: {error}", path = .path.display())]
    Broken {
        /// The control socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The line received is not an answer.
    #[error("the answer is not understood: {0}")]
    Misread(#[from] serde_json::Error),
    /// The backend refused, for this reason.
    #[error("{0}")]
    Refused(String),
}

impl Client {
    /// Connects to a control socket.
    ///
    /// # Errors
    /// [`Error::NoBackend`].
    pub fn connect(path: &Path) -> Result<Client, Error> {
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(BufReader::new(stream))
        };
        let stream = connect().map_err(|error| Error::NoBackend { path: path.to_owned(), error })?;
        Ok(Client { path: path.to_owned(), stream })
    }

    /// State and counters of everything.
    ///
    /// # Errors
    /// See [`Error`]; the same for all further functions.
    pub fn show(&mut self) -> Result<Snapshot, Error> {
        self.request(Request::Show)
    }

    /// Changes one setting of a vif or link.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set(&mut self, target: &str, key: &str, value: &str) -> Result<(), Error> {
        let (target, key, value) = (target.to_owned(), key.to_owned(), value.to_owned());
        self.request(Request::Set(Set { target, key, value }))
    }

    /// Adds a vif, tenant or link with these keys and values.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn add(&mut self, add: Add) -> Result<(), Error> {
        self.request(Request::Add(add))
    }

    /// Removes a vif, tenant or link.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn remove(&mut self, kind: Kind, name: &str) -> Result<(), Error> {
        self.request(Request::Remove(Remove { kind, name: name.to_owned() }))
    }

    /// Replaces the policy by a file's text. Problems are reported with `name`. Returns the number of changes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reload(&mut self, name: &str, text: &str) -> Result<usize, Error> {
        self.load(&Files::new(File::new(name, text), Vec::new()))
    }

    /// The same with drop-in files.
    ///
    /// # Errors
    /// See [`Error`]. If only drop-ins are wrong, the rest is loaded.
    pub fn load(&mut self, files: &Files) -> Result<usize, Error> {
        let drop_ins = files.drop_ins().iter().map(DropIn::from);
        let (name, text, drop_ins) = (files.policy.name.clone(), files.policy.text.clone(), drop_ins.collect());
        self.request(Request::Reload(Reload { name, text, drop_ins }))
    }

    /// The file that keeps what was added, changed and removed.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn save(&mut self) -> Result<Saved, Error> {
        self.request(Request::Save)
    }

    /// Captures a vif's frames in a new file: at most `snap` bytes of each, and `limit` bytes in all.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start_capture(
        &mut self,
        vif: &str,
        file: &Path,
        snap: Option<u32>,
        limit: Option<u64>,
    ) -> Result<(), Error> {
        self.request(Request::StartCapture(StartCapture { vif: vif.to_owned(), file: file.to_owned(), snap, limit }))
    }

    /// Ends a capture.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn stop_capture(&mut self, vif: &str) -> Result<CaptureReport, Error> {
        self.request(Request::StopCapture(StopCapture { vif: vif.to_owned() }))
    }

    /// The flows of early ack.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn flows(&mut self) -> Result<Vec<FlowState>, Error> {
        self.request(Request::Flows)
    }

    /// Writes a vif's flows to a new file. Returns its size in bytes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn export_flows(&mut self, vif: &str, file: &Path) -> Result<u64, Error> {
        self.request(Request::ExportFlows(FlowsFile { vif: vif.to_owned(), file: file.to_owned() }))
    }

    /// Imports a vif's flows from a file. Returns their number.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn import_flows(&mut self, vif: &str, file: &Path) -> Result<u32, Error> {
        self.request(Request::ImportFlows(FlowsFile { vif: vif.to_owned(), file: file.to_owned() }))
    }

    /// Ends the backend.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn stop(&mut self) -> Result<(), Error> {
        self.request(Request::Stop)
    }

    /// Has the backend hand everything over to this process. Returns the connection, on which it comes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn hand_over(mut self) -> Result<UnixStream, Error> {
        self.send(Request::HandOver(HandOver { format: handover::FORMAT }))?;
        let Client { path, stream } = self;
        let mut stream = stream.into_inner();
        // Byte by byte: what follows the line comes with descriptors, which a read for more would lose.
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let mut byte = [0];
            stream.read_exact(&mut byte).map_err(|error| Error::Broken { path: path.clone(), error })?;
            answer.extend(byte);
        }
        understood::<()>(&answer)?;
        Ok(stream)
    }

    fn request<T: DeserializeOwned>(&mut self, request: Request) -> Result<T, Error> {
        self.send(request)?;
        let broken = |error| Error::Broken { path: self.path.clone(), error };
        let mut answer = Vec::new();
        self.stream.read_until(b'\n', &mut answer).map_err(broken)?;
        if answer.is_empty() {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        understood(&answer)
    }

    fn send(&mut self, request: Request) -> Result<(), Error> {
        let mut line = serde_json::to_vec(&Call { protocol: PROTOCOL, request })?;
        line.push(b'\n');
        let broken = |error| Error::Broken { path: self.path.clone(), error };
        match self.stream.get_mut().write_all(&line) {
            // A backend with too many clients sends the reason before it closes the connection.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(broken)?,
        }
        Ok(())
    }
}

/// The value in an answer.
fn understood<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Error> {
    match serde_json::from_slice(answer)? {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(sentence) => Err(Error::Refused(sentence)),
    }
}
