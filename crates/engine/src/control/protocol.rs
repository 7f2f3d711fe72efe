//! The words of the control protocol.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The protocol's version. A server refuses requests of another one.
pub const PROTOCOL: u32 = 1;

/// Bytes of a line at most; a longer one ends the connection.
pub const LINE: usize = 4 << 20;

/// A request with the version it is written in: one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Call {
    pub protocol: u32,
    pub request: Request,
}

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Answered with a [`crate::snapshot::Snapshot`].
    Show,
    /// Changes one setting of a vif or link. Answered with null.
    Set(Set),
    /// Replaces the policy. Answered with the number of changes made.
    Reload(Reload),
    /// Records a vif's frames in a file. Answered with null.
    StartCapture(StartCapture),
    /// Ends a capture. Answered with a [`CaptureReport`].
    StopCapture(StopCapture),
    /// Answered with the flows that early ack knows: a list of [`crate::snapshot::FlowState`].
    Flows,
    /// Writes a vif's flows, with their copies, to a new file. Answered with its bytes.
    ExportFlows(FlowsFile),
    /// Takes over flows from a file. Answered with their number.
    ImportFlows(FlowsFile),
    /// Ends the backend. Answered with null before it does.
    Stop,
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

/// A whole policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// What problems call the file.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What to record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartCapture {
    /// Name of the vif.
    pub vif: String,
    /// Where to write, an absolute path. An existing file is not touched.
    pub file: PathBuf,
    /// Bytes recorded of a frame at most; all if absent.
    #[serde(default)]
    pub snap: Option<u32>,
    /// Bytes of the file at most, where the capture ends; 1 GiB if absent.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// What to record no longer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCapture {
    /// Name of the vif.
    pub vif: String,
}

/// A vif's flows in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsFile {
    /// Name of the vif.
    pub vif: String,
    /// The file, an absolute path. An export does not touch an existing one.
    pub file: PathBuf,
}

/// What a capture came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// Frames in the file.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Frames that passed and are not in the file, as it could not be written as fast.
    pub left_out: u64,
    /// Why it ended before it was stopped (its limit, a full disk); none if it did not.
    pub ended: Option<String>,
}

/// The answer to a request: one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// Done; what it says depends on the request.
    Ok(T),
    /// Not done, and why: a sentence.
    Error(String),
}

impl Call {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Request, Misread> {
        // The version first: what else a later version says need not be understood.
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

/// Why a line is no request.
#[derive(Debug, thiserror::Error)]
pub enum Misread {
    /// It goes on past this many bytes.
    #[error("a request has at most {0} bytes")]
    Long(usize),
    /// It is in another version.
    #[error("the request is in protocol {0}, this backend speaks {PROTOCOL}")]
    Version(u32),
    /// It is no JSON, or no request.
    #[error(r#"the request is not understood: {0}; a request looks like {{"protocol":1,"request":"show"}}"#)]
    Text(serde_json::Error),
}
