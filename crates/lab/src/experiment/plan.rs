//! What the agents of a machine do together, as data, and how that is done.

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::time::Instant;

use fairlane_agent::{Command, Event, Outcome};

use crate::{Agent, Error, Node};

/// What agents do together: servers first, and once all of them serve, each of the others in its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub(super) servers: Vec<(Node, Command)>,
    /// Each with its start, in seconds after the servers' own.
    pub(super) clients: Vec<(Node, f64, Command)>,
}

/// What became of one command of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// What the agent said while it worked.
    pub events: Vec<Event>,
    /// What it said at the end.
    pub outcome: Outcome,
}

/// The nodes of a machine by their addresses.
pub type Addresses<'a> = &'a dyn Fn(Node) -> Ipv4Addr;

impl Plan {
    /// Adds a command that says when it serves ([`Event::Started`]). It runs from the beginning.
    pub fn serve(&mut self, node: Node, command: Command) {
        self.servers.push((node, command));
    }

    /// Adds a command that starts so many seconds after all serve.
    pub fn start(&mut self, node: Node, at: f64, command: Command) {
        self.clients.push((node, at, command));
    }
}

/// What was said, and by which command of a plan.
type Said = (usize, Result<(Instant, Event), Error>);

/// Carries a plan out; answers an account each command, the servers' first, in the plan's order.
///
/// # Errors
/// That of the first command that fails.
pub(super) fn perform<'a>(plan: &Plan, agent: impl Fn(Node) -> &'a Agent) -> Result<Vec<Account>, Error> {
    let (say, said) = channel::<Said>();
    let mut jobs = Vec::new();
    for (node, command) in &plan.servers {
        jobs.push(agent(*node).start_job(command.clone())?);
    }
    for job in &jobs {
        job.started()?;
    }
    // Each agent itself lets the time until its command's start pass. All are told before anything more is heard, so that
    // what is asked, and after what, does not depend on who was faster.
    for (node, start, command) in &plan.clients {
        jobs.push(agent(*node).start_job_later(*start, command.clone())?);
    }
    for (index, job) in jobs.into_iter().enumerate() {
        let say = say.clone();
        job.pass_on(move |heard| say.send((index, heard)).is_ok());
    }
    let commands = plan.servers.len() + plan.clients.len();
    let mut events = vec![Vec::new(); commands];
    let mut outcomes: Vec<Option<Outcome>> = vec![None; commands];
    while outcomes.iter().any(Option::is_none) {
        match said.recv().expect("this thread holds a sender") {
            (index, Ok((_, Event::Done(outcome)))) => outcomes[index] = Some(outcome),
            (index, Ok((_, event))) => events[index].push(event),
            (_, Err(error)) => return Err(error),
        }
    }
    let accounts = events.into_iter().zip(outcomes);
    Ok(accounts.filter_map(|(events, outcome)| Some(Account { events, outcome: outcome? })).collect())
}
