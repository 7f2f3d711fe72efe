//! A plan of commands for the agents of a machine, and its execution.

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::time::Instant;

use fairlane_agent::{Command, Event, Outcome};

use crate::{Agent, Error, Node};

/// Commands for several agents: servers first; once all of them are ready, each client at its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub(super) servers: Vec<(Node, Command)>,
    /// Each with its start, in seconds after all servers are ready.
    pub(super) clients: Vec<(Node, f64, Command)>,
}

/// The outcome of one command of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// The events while it ran.
    pub events: Vec<Event>,
    /// The last event's outcome.
    pub outcome: Outcome,
}

/// Gives the address of each node of a machine.
pub(super) type Addresses<'a> = &'a dyn Fn(Node) -> Ipv4Addr;

impl Plan {
    /// The servers, in order.
    pub fn servers(&self) -> &[(Node, Command)] {
        &self.servers
    }

    /// The other commands in order, each with its start, in seconds after all servers are ready.
    pub fn clients(&self) -> &[(Node, f64, Command)] {
        &self.clients
    }

    /// Adds a server: a command that runs from the beginning and reports when it is ready ([`Event::Started`]).
    pub fn serve(&mut self, node: Node, command: Command) {
        self.servers.push((node, command));
    }

    /// Adds a command that starts `at` seconds after all servers are ready.
    pub fn start(&mut self, node: Node, at: f64, command: Command) {
        self.clients.push((node, at, command));
    }
}

/// An event, with the index of its command in the plan.
type Report = (usize, Result<(Instant, Event), Error>);

/// Executes a plan; returns an account per command, the servers' first, in the plan's order.
///
/// # Errors
/// That of the first command that fails.
pub(super) fn execute<'a>(plan: &Plan, agent: impl Fn(Node) -> &'a Agent) -> Result<Vec<Account>, Error> {
    let (sender, reports) = channel::<Report>();
    let mut jobs = Vec::new();
    for (node, command) in &plan.servers {
        jobs.push(agent(*node).start_job(command.clone())?);
    }
    for job in &jobs {
        job.started()?;
    }
    // Each agent itself waits until its command's start. All requests are sent before any further event is received, so that
    // the order of requests and events, which a replay needs, does not depend on timing.
    for (node, start, command) in &plan.clients {
        jobs.push(agent(*node).start_job_later(*start, command.clone())?);
    }
    for (index, job) in jobs.into_iter().enumerate() {
        let sender = sender.clone();
        job.pass_on(move |event| sender.send((index, event)).is_ok());
    }
    let commands = plan.servers.len() + plan.clients.len();
    let mut events = vec![Vec::new(); commands];
    let mut outcomes: Vec<Option<Outcome>> = vec![None; commands];
    while outcomes.iter().any(Option::is_none) {
        match reports.recv().expect("this thread holds a sender") {
            (index, Ok((_, Event::Done(outcome)))) => outcomes[index] = Some(outcome),
            (index, Ok((_, event))) => events[index].push(event),
            (_, Err(error)) => return Err(error),
        }
    }
    let accounts = events.into_iter().zip(outcomes);
    Ok(accounts.filter_map(|(events, outcome)| Some(Account { events, outcome: outcome? })).collect())
}
