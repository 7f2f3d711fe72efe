//! Requests, messages, and their lines.

use std::path::PathBuf;

use fairlane_load::{
    ReceiveSpec, Received, Sample, Sent, ServeSpec, busy, delay, digest, disk, ping, processors, tcp,
    traffic::{client, server},
    transfer, udp,
};
use serde::{Deserialize, Serialize};

use crate::{Counters, Function, doctor, mpi, proxy};

/// What the host wants run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host, above zero; repeated in every answer.
    pub id: u64,
    /// The guest the agent is to pass it on to; the agent itself if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Seconds that the agent lets pass first. What it does itself to serve ([`Command::Attach`], [`Command::Spawn`],
    /// [`Command::PowerOff`]) it does at once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay: f64,
    /// The work.
    pub run: Command,
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// The work an agent can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Who is there.
    Hello,
    /// Sends datagrams.
    UdpSend(udp::SendSpec),
    /// Counts datagrams; [`Event::Started`], then samples.
    UdpReceive(ReceiveSpec),
    /// Sends streams.
    TcpSend(tcp::SendSpec),
    /// Counts streams; [`Event::Started`], then samples.
    TcpReceive(ReceiveSpec),
    /// Asks a kernel for echoes.
    Ping(ping::Spec),
    /// Sends datagrams whose delay one way is measured, to an agent that does `DelayServe`.
    DelaySend(delay::Spec),
    /// Serves the receiving side of `DelaySend`; [`Event::Started`]. It may be left behind.
    DelayServe(ServeSpec),
    /// Makes transfers over TCP, to an agent that does `TransferServe`.
    TransferSend(transfer::Spec),
    /// Serves the receiving side of `TransferSend`; [`Event::Started`]. It may be left behind.
    TransferServe(ServeSpec),
    /// Sends random bytes whose hash is compared, to an agent that does `DigestServe`.
    DigestSend(digest::Spec),
    /// Hashes what `DigestSend` sends; [`Event::Started`]. It may be left behind.
    DigestServe(ServeSpec),
    /// Serves requests; [`Event::Started`]. It may be left behind.
    RequestServe(server::Spec),
    /// Makes requests of an agent that does `RequestServe`, or of any server.
    RequestSend(client::Spec),
    /// Has HAProxy pass requests on to a server; [`Event::Started`].
    Proxy(proxy::Spec),
    /// Looks on what the processors' time is spent on.
    Processors(processors::Spec),
    /// Looks on what limits the machine.
    Doctor(doctor::Spec),
    /// Has nodes exchange blocks, all with all: itself, and those that do `MpiServe`.
    MpiRun(mpi::Spec),
    /// Serves as the remote shell by which an agent that does `MpiRun` starts a node; [`Event::Started`].
    MpiServe(mpi::ShellSpec),
    /// Keeps a processor busy.
    Busy(busy::Spec),
    /// Reads or writes a disk; [`Event::Started`].
    Disk(disk::Spec),
    /// Reads the interfaces' counters.
    Counters,
    /// Runs a program to its end, without input.
    Run {
        /// The program, looked for on the PATH, and its arguments.
        argv: Vec<String>,
    },
    /// Runs a program again and again until it ends well and prints a text; answered as [`Command::Run`].
    Await {
        /// As [`Command::Run`] has it.
        argv: Vec<String>,
        /// The text, among what it prints.
        text: String,
        /// How long it may take, in seconds.
        seconds: f64,
    },
    /// Reads a file, such as one of /proc or /sys.
    Read {
        /// The file.
        path: PathBuf,
    },
    /// Writes a text into a file, such as one of /proc/sys.
    Write {
        /// The file.
        path: PathBuf,
        /// What it is to hold.
        text: String,
    },
    /// Marks a moment for the emulator that executes the agent's computer, where its plugin counts instructions.
    Mark,
    /// Looks up the functions that addresses lie in.
    Symbols {
        /// `/proc/kallsyms`, or another table of that form.
        table: PathBuf,
        /// The addresses.
        addresses: Vec<u64>,
    },
    /// Opens the way to the agent of a guest of this host. Answered with the guest's own word that it is ready, or
    /// cannot be.
    Attach {
        /// The name requests for it will bear.
        name: String,
        /// The tty that is its console.
        console: PathBuf,
    },
    /// Starts a program whose standard input, a socket, is the console of an agent; as [`Command::Attach`].
    Spawn {
        /// The name requests for it will bear.
        name: String,
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// Ends the guest.
    PowerOff,
}

/// An answer of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The request's; zero is about the guest's start: `Done` when it is ready, `Failed` when it cannot be.
    pub id: u64,
    /// What happened.
    pub event: Event,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A receiver or a disk's load began counting: zero of its samples' `t`; or a server can be reached.
    Started,
    /// One source's interval.
    Sample(Sample),
    /// The request ended well.
    Done(Outcome),
    /// The request ended badly, and why.
    Failed(String),
    /// The guest it was for has ended, how, and what its console printed last.
    Gone(String),
}

impl Event {
    /// Whether it is its request's last.
    pub fn ends(&self) -> bool {
        matches!(self, Event::Done(_) | Event::Failed(_) | Event::Gone(_))
    }

    /// Whether the host may ask for more because of it: a measurement's samples, whose number depends on the traffic, it
    /// only keeps.
    pub fn moves(&self) -> bool {
        !matches!(self, Event::Sample(_))
    }
}

/// What a request that ended well has to tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The guest is there.
    Hello {
        /// The release of its kernel.
        kernel: String,
        /// Its monotonic clock, in seconds: about the time since its kernel started.
        clock: f64,
        /// The agent's process id: 1 in a guest; on the host the way to its network namespace.
        pid: u32,
    },
    /// A sender's account.
    Sent(Sent),
    /// A receiver's account.
    Received(Received),
    /// The round trips of `Ping`.
    RoundTrips(ping::RoundTrips),
    /// The delays of `DelaySend`.
    Delays(delay::Delays),
    /// The transfers of `TransferSend`, in order.
    Transfers(Vec<transfer::Transfer>),
    /// What came of `RequestSend`.
    Requests(client::Account),
    /// What was spent, a processor each.
    Processors(Vec<processors::Use>),
    /// What limited the machine, the most limiting first.
    Findings(Vec<doctor::Finding>),
    /// What the exchanges of `MpiRun` took, by size, in order.
    Exchanged(Vec<mpi::Times>),
    /// What `Busy` consumed.
    Consumed(busy::Consumed),
    /// What was done to the disk.
    Disk(disk::Done),
    /// A server's time is up, or there is nothing more to serve.
    Served,
    /// Counters.
    Counters(Counters),
    /// A program has ended.
    Ran {
        /// Its exit status; none where a signal ended it.
        status: Option<i32>,
        /// What it printed.
        stdout: String,
        /// What it complained of.
        stderr: String,
    },
    /// What is in the file.
    Text(String),
    /// The file is written.
    Written,
    /// The moment is marked.
    Marked {
        /// The agent's marks so far, this one too.
        number: usize,
        /// The counters just before it.
        counters: Counters,
    },
    /// The functions that the addresses lie in.
    Symbols(Vec<Function>),
    /// The guest ends after this message.
    PoweringOff,
}

/// The line of a request or message, with its line end.
pub fn encode(line: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("a message has only string keys and serialises");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_is_as_documented() {
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
