//! The protocol: requests, messages, and their encoding in lines.

use std::path::PathBuf;

use fairlane_load::{
    ReceiveSpec, Received, Sample, Sent, ServeSpec, busy, delay, digest, disk, ping, processors, tcp,
    traffic::{client, server},
    transfer, udp,
};
use serde::{Deserialize, Serialize};

use crate::{Counters, Function, doctor, mpi, proxy};

/// A command for an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host, above zero; repeated in every answer.
    pub id: u64,
    /// The guest that the agent forwards the request to; the agent itself if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Seconds that the agent waits first. [`Command::Attach`], [`Command::Spawn`] and [`Command::PowerOff`] are executed at once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: f64,
    /// The command.
    pub run: Command,
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// A command that an agent can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Asks for kernel, clock and process id.
    Hello,
    /// Sends datagrams.
    UdpSend(udp::SendSpec),
    /// Counts datagrams; [`Event::Started`], then samples.
    UdpReceive(ReceiveSpec),
    /// Sends streams.
    TcpSend(tcp::SendSpec),
    /// Counts streams; [`Event::Started`], then samples.
    TcpReceive(ReceiveSpec),
    /// Sends echo requests.
    Ping(ping::Spec),
    /// Sends datagrams to an agent that runs `DelayServe` and measures their one-way delay.
    DelaySend(delay::Spec),
    /// The receiving side of `DelaySend`; [`Event::Started`]. May still run when the agent ends.
    DelayServe(ServeSpec),
    /// Makes TCP transfers to an agent that runs `TransferServe`.
    TransferSend(transfer::Spec),
    /// The receiving side of `TransferSend`; [`Event::Started`]. May still run when the agent ends.
    TransferServe(ServeSpec),
    /// Sends random bytes to an agent that runs `DigestServe` and compares their hash.
    DigestSend(digest::Spec),
    /// Hashes what `DigestSend` sends; [`Event::Started`]. May still run when the agent ends.
    DigestServe(ServeSpec),
    /// Serves requests; [`Event::Started`]. May still run when the agent ends.
    RequestServe(server::Spec),
    /// Makes requests to an agent that runs `RequestServe`, or to any server.
    RequestSend(client::Spec),
    /// Runs HAProxy, which forwards requests to a server; [`Event::Started`].
    Proxy(proxy::Spec),
    /// Observes the use of the CPUs.
    Processors(processors::Spec),
    /// Runs the doctor.
    Doctor(doctor::Spec),
    /// Runs an all-to-all exchange between this node and those that run `MpiServe`.
    MpiRun(mpi::Spec),
    /// The remote shell by which `MpiRun` starts its daemon on this node; [`Event::Started`].
    MpiServe(mpi::ShellSpec),
    /// Keeps a CPU busy.
    Busy(busy::Spec),
    /// Reads or writes a disk; [`Event::Started`].
    Disk(disk::Spec),
    /// Reads the interfaces' counters.
    Counters,
    /// Runs a program until it exits, without input.
    Run {
        /// The program, searched for on the PATH, and its arguments.
        argv: Vec<String>,
    },
    /// Runs a program again and again until it succeeds and its output contains a text; answered as [`Command::Run`].
    Await {
        /// As in [`Command::Run`].
        argv: Vec<String>,
        /// The text.
        text: String,
        /// The time limit, in seconds.
        seconds: f64,
    },
    /// Reads a file, such as one of /proc or /sys.
    Read {
        /// The file.
        path: PathBuf,
    },
    /// Writes a file, such as one of /proc/sys.
    Write {
        /// The file.
        path: PathBuf,
        /// Its new contents.
        text: String,
    },
    /// Makes a mark for the emulator's plugin, if that counts instructions.
    Mark,
    /// Resolves addresses to functions.
    Symbols {
        /// `/proc/kallsyms`, or another table in its format.
        table: PathBuf,
        /// The addresses.
        addresses: Vec<u64>,
    },
    /// Attaches to the console of a guest of this host, to forward requests to its agent. Answered when the guest's agent reports
    /// that it is ready, or has failed.
    Attach {
        /// The guest's name in requests ([`Request::to`]).
        name: String,
        /// The tty of its console.
        console: PathBuf,
    },
    /// As [`Command::Attach`], for a program that it starts: the program's standard input, a socket, is the agent's console.
    Spawn {
        /// The guest's name in requests ([`Request::to`]).
        name: String,
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// Ends the guest.
    PowerOff,
}

/// A message of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The request's id. Zero is for the agent's start: `Done` when it is ready, `Failed` if that failed.
    pub id: u64,
    /// The event.
    pub event: Event,
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A receiver or disk load started to count, which is the zero of its samples' `t`; or a server is ready.
    Started,
    /// One source's interval.
    Sample(Sample),
    /// The request succeeded.
    Done(Outcome),
    /// The request failed, with the reason.
    Failed(String),
    /// The guest it was for has ended: the reason, and the last lines of its console.
    Gone(String),
}

impl Event {
    /// Whether it is the last event of its request.
    pub fn ends(&self) -> bool {
        matches!(self, Event::Done(_) | Event::Failed(_) | Event::Gone(_))
    }

    /// Whether the host may make further requests because of it. Samples, whose number depends on the traffic, are only stored.
    pub fn may_cause_requests(&self) -> bool {
        !matches!(self, Event::Sample(_))
    }
}

/// The outcome of a successful request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer to `Hello`.
    Hello {
        /// The release of its kernel.
        kernel: String,
        /// Its monotonic clock, in seconds: about the time since its kernel started.
        clock: f64,
        /// The agent's process id: 1 in a guest. On the host it identifies the network namespace.
        pid: u32,
    },
    /// A sender's totals.
    Sent(Sent),
    /// A receiver's totals.
    Received(Received),
    /// The round trips of `Ping`.
    RoundTrips(ping::RoundTrips),
    /// The delays of `DelaySend`.
    Delays(delay::Delays),
    /// The transfers of `TransferSend`, in order.
    Transfers(Vec<transfer::Transfer>),
    /// The account of `RequestSend`.
    Requests(client::Account),
    /// The use of each CPU.
    Processors(Vec<processors::Use>),
    /// The doctor's findings, the most limiting first.
    Findings(Vec<doctor::Finding>),
    /// The times of `MpiRun`'s exchanges, by size, in order.
    Exchanged(Vec<mpi::Times>),
    /// The CPU time that `Busy` consumed.
    Consumed(busy::Consumed),
    /// The disk's operations.
    Disk(disk::Done),
    /// A server's time is up, or it has nothing more to serve.
    Served,
    /// The interfaces' counters.
    Counters(Counters),
    /// A program has exited.
    Ran {
        /// Its exit status; none if a signal ended it.
        status: Option<i32>,
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
    },
    /// The contents of the file.
    Text(String),
    /// The file is written.
    Written,
    /// The mark is made.
    Marked {
        /// The number of the agent's marks, including this one.
        number: usize,
        /// The counters just before it.
        counters: Counters,
    },
    /// The functions of the addresses.
    Symbols(Vec<Function>),
    /// The guest ends after this message.
    PoweringOff,
}

/// Encodes a request or message as a line, with the line end.
pub fn encode(line: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("a message has string keys only");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_as_documented() {
        let request: Request = serde_json::from_str(
            r#"{"id": 3, "run": {"udp_send": {"to": "10.0.0.2:5001", "size": 1458, "rate": null, "seconds": 2}}}"#,
        )
        .unwrap();
        let to = "10.0.0.2:5001".parse().unwrap();
        let run = Command::UdpSend(udp::SendSpec { to, size: 1458, rate: None, seconds: 2.0 });
        assert_eq!(request, Request { id: 3, to: None, delay: 0.0, run });
        let line = encode(&Message { id: 3, event: Event::Done(Outcome::PoweringOff) });
        assert_eq!(line, b"{\"id\":3,\"event\":{\"done\":\"powering_off\"}}\n");
    }
}
