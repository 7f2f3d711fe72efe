//! The messages of the control protocol.

use fairlane_policy::{File, Kind};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The protocol's version. A server refuses requests of another version.
pub const PROTOCOL: u32 = 1;

/// Longest line in bytes; a longer one ends the connection.
pub const LINE: usize = 4 << 20;

/// A request with the version it is written in: one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Call {
    pub protocol: u32,
    pub request: Request,
}

/// The requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Returns a [`crate::snapshot::Snapshot`].
    Show,
    /// Changes one setting of a vif or link. Returns null.
    Set(Set),
    /// Adds a vif, tenant or link. Returns null.
    Add(Add),
    /// Removes a vif, tenant or link. Returns null.
    Remove(Remove),
    /// Replaces the policy, except for what was added since the backend started. Returns the number of changes.
    Reload(Reload),
    /// Returns a [`Saved`]: a file that keeps what was added, changed and removed.
    Save,
    /// Captures a vif's frames in a file. Returns null.
    StartCapture(StartCapture),
    /// Ends a capture. Returns a [`CaptureReport`].
    StopCapture(StopCapture),
    /// Returns the flows of early ack: a list of [`crate::snapshot::FlowState`].
    Flows,
    /// Writes a vif's flows, with their copies, to a new file. Returns its size in bytes.
    ExportFlows(FlowsFile),
    /// Imports flows from a file. Returns their number.
    ImportFlows(FlowsFile),
    /// Hands everything over to the client, a process that serves it from then on. After null the connection is not the protocol's any
    /// more.
    HandOver(HandOver),
    /// Ends the backend. Null is returned before it ends.
    Stop,
}

impl Request {
    /// What it would change or write, for the log; none if it only shows something.
    pub(super) fn change(&self) -> Option<String> {
        // Names and values are a client's: a line of the log stays one.
        let shown = |text: &str| text.chars().take(200).collect::<String>().escape_debug().to_string();
        Some(match self {
            Request::Show | Request::Flows | Request::Save => return None,
            Request::Set(Set { target, key, value }) => {
                format!("set {} {}={}", shown(target), shown(key), shown(value))
            }
            Request::Add(Add { kind, name, settings, .. }) => {
                let settings = settings.iter().map(|(key, value)| format!(" {}={}", shown(key), shown(value)));
                format!("add {} {}{}", kind, shown(name), settings.collect::<String>())
            }
            Request::Remove(Remove { kind, name }) => format!("remove {} {}", kind, shown(name)),
            Request::Reload(Reload { name, .. }) => format!("reload {}", shown(name)),
            Request::StartCapture(StartCapture { vif, file, .. }) => format!("capture {} {file:?}", shown(vif)),
            Request::StopCapture(StopCapture { vif }) => format!("capture {} --stop", shown(vif)),
            Request::ExportFlows(FlowsFile { vif, file }) => format!("flows export {} {file:?}", shown(vif)),
            Request::ImportFlows(FlowsFile { vif, file }) => format!("flows import {} {file:?}", shown(vif)),
            Request::HandOver(_) => "hand over".to_owned(),
            Request::Stop => "stop".to_owned(),
        })
    }
}

/// A setting as in a policy file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Name of a vif or link.
    pub target: String,
    /// For example `weight` or `rate`.
    pub key: String,
    /// The value's text, for example `30` or `20Mbit/s`.
    pub value: String,
}

/// A part to add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its keys, each with the value's text, for example `weight` and `30`.
    #[serde(default)]
    pub settings: Vec<(String, String)>,
    /// Whether it replaces the one with this name, if there is one.
    #[serde(default)]
    pub replace: bool,
}

/// A part to remove.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

/// A whole policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// The file name for problems.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Its drop-in files.
    #[serde(default)]
    pub drop_ins: Vec<DropIn>,
}

/// A drop-in file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropIn {
    /// The file name for problems, and for the order of drop-ins.
    pub name: String,
    /// Its text; empty if it could not be read.
    pub text: String,
    /// Why it could not be read, if that is so: it is there, so what it said before stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl From<&File> for DropIn {
    fn from(file: &File) -> DropIn {
        let File { name, text, unreadable } = file.clone();
        DropIn { name, text, unreadable }
    }
}

impl From<DropIn> for File {
    fn from(file: DropIn) -> File {
        let DropIn { name, text, unreadable } = file;
        File { name, text, unreadable }
    }
}

/// A drop-in file that keeps changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Where it belongs, an absolute path.
    pub file: PathBuf,
    /// What it has to contain.
    pub text: String,
}

/// A capture to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartCapture {
    /// Name of the vif.
    pub vif: String,
    /// The file, an absolute path. An existing file is left unchanged.
    pub file: PathBuf,
    /// Most bytes recorded of a frame; all if absent.
    #[serde(default)]
    pub snap: Option<u32>,
    /// Size of the file in bytes at which the capture ends; 1 GiB if absent.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// A capture to stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCapture {
    /// Name of the vif.
    pub vif: String,
}

/// Who takes over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The format in which it understands what it is given: [`fairlane_port::handover::FORMAT`].
    pub format: u32,
}

/// A vif's flows in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsFile {
    /// Name of the vif.
    pub vif: String,
    /// The file, an absolute path. An export leaves an existing one unchanged.
    pub file: PathBuf,
}

/// The result of a capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// Frames in the file.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Frames that are not in the file, because it could not be written fast enough.
    pub left_out: u64,
    /// Why it ended before it was stopped (its limit, a full disk); none if it did not.
    pub ended: Option<String>,
}

/// The answer to a request: one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// Success; the value depends on the request.
    Ok(T),
    /// Failure: the reason, as a sentence.
    Error(String),
}

impl Call {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not a valid request.
    pub(super) fn parse(line: &[u8]) -> Result<Request, Misread> {
        // The version first: the rest of another version's request need not be valid.
        #[derive(Deserialize)]
        struct Version {
            protocol: u32,
        }
        let version: Version = serde_json::from_slice(line).map_err(Misread::Text)?;
        if version.protocol != PROTOCOL {
            return Err(Misread::Version(version.protocol));
        }
        let call: Call = serde_json::from_slice(line).map_err(Misread::Text)?;
        Ok(call.request)
    }
}

/// Why a line is not a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misread {
    /// It is longer than this many bytes.
    #[error("a request has at most {0} bytes")]
    Long(usize),
    /// It is in another version.
    #[error("the request is in protocol {0}, this backend speaks {PROTOCOL}")]
    Version(u32),
    /// It is not JSON, or not a request.
    #[error(r#"the request is not understood: {0}; a request looks like {{"protocol":1,"request":"show"}}"#)]
    Text(serde_json::Error),
}
