//! The asking side: what `fairlane ctl` and `fairlane top` are made of.

use super::protocol::{
    Call, CaptureReport, FlowsFile, PROTOCOL, Reload, Reply, Request, Set, StartCapture, StopCapture,
};
use crate::snapshot::{FlowState, Snapshot};
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A backend that does not answer for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a running backend.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no backend answers at {path}: {error}", path = .path.display())]
    NoBackend {
        /// The control socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The connection broke.
    #[error("the backend at {path} does not answer: {error}", path = .path.display())]
    Broken {
        /// The control socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// What came is not an answer.
    #[error("the answer is not understood: {0}")]
    Misread(#[from] serde_json::Error),
    /// The backend's reason for not doing it.
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
    /// See [`Error`]; so for all that follow.
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

    /// Replaces the policy by a file's text; `name` is what problems call the file. Returns the number of changes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reload(&mut self, name: &str, text: &str) -> Result<usize, Error> {
        self.request(Request::Reload(Reload { name: name.to_owned(), text: text.to_owned() }))
    }

    /// Records a vif's frames in a new file: `snap` bytes of each at most, and `limit` bytes of the file.
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

    /// The flows that early ack knows.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn flows(&mut self) -> Result<Vec<FlowState>, Error> {
        self.request(Request::Flows)
    }

    /// Writes a vif's flows to a new file. Returns its bytes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn export_flows(&mut self, vif: &str, file: &Path) -> Result<u64, Error> {
        self.request(Request::ExportFlows(FlowsFile { vif: vif.to_owned(), file: file.to_owned() }))
    }

    /// Has a vif take over the flows in a file. Returns how many.
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

    fn request<T: DeserializeOwned>(&mut self, request: Request) -> Result<T, Error> {
        let mut line = serde_json::to_vec(&Call { protocol: PROTOCOL, request })?;
        line.push(b'\n');
        let broken = |error| Error::Broken { path: self.path.clone(), error };
        match self.stream.get_mut().write_all(&line) {
            // A backend that takes no more clients says so before it hangs up.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(broken)?,
        }
        let mut answer = Vec::new();
        self.stream.read_until(b'\n', &mut answer).map_err(broken)?;
        if answer.is_empty() {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&answer)? {
            Reply::Ok(answer) => Ok(answer),
            Reply::Error(sentence) => Err(Error::Refused(sentence)),
        }
    }
}
