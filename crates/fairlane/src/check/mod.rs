//! Checks a policy file and its drop-ins; says what a correct one does, and what of it will not work on this host.

mod explain;
mod warnings;

use crate::host::Host;
use crate::out;
use crate::policy_file::{self, PolicyError};
use fairlane_policy::units::format_rate;
use fairlane_policy::{Direction, Link, Policy, Uplink};
use fairlane_report::text::table;
use serde::Serialize;
use std::path::PathBuf;

/// Report every problem of a policy file, or say what a correct one does
///
/// Warnings name what will not work on this host, such as a card that is a port of a bridge. The exit status is 0 in spite of them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy file
    policy: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// The findings as JSON.
#[derive(Serialize)]
struct Findings {
    ok: bool,
    problems: Vec<Found>,
    links: Vec<Summary>,
    /// What the policy does, a line per link and vif.
    explained: Vec<String>,
    /// What will not work on this host.
    warnings: Vec<String>,
}

/// A problem. `line` is null if the file could not be read.
#[derive(Serialize)]
struct Found {
    file: String,
    line: Option<usize>,
    message: String,
}

/// A link and the rates guaranteed to its vifs, in bits per second.
#[derive(Serialize)]
struct Summary {
    name: String,
    scheduler: &'static str,
    rate: Option<u64>,
    /// Sum of all `min_rate`s.
    min_rates: u64,
    vifs: usize,
    uplink: String,
}

/// Prints the problems, or the summary and the warnings.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let read = policy_file::read(&args.policy).and_then(|loaded| match loaded.problems {
        problems if problems.is_empty() => Ok(loaded.policy),
        problems => Err(PolicyError::Invalid(problems)),
    });
    if args.json {
        out::print_json(&findings(&read))?;
    } else if let Ok(policy) = &read {
        let lines = explain::lines(policy).into_iter();
        let warnings =
            warnings::warnings(policy, &Host::look()).into_iter().map(|warning| format!("warning: {warning}"));
        let lines: String = lines.chain(warnings).map(|line| line + "\n").collect();
        out::print(&format!("{}: ok\n\n{}\n{lines}", args.policy.display(), text(&summaries(policy))))?;
    }
    read?;
    Ok(())
}

fn findings(read: &Result<Policy, PolicyError>) -> Findings {
    let (problems, links) = match read {
        Ok(policy) => {
            let (explained, warnings) = (explain::lines(policy), warnings::warnings(policy, &Host::look()));
            return Findings { ok: true, problems: Vec::new(), links: summaries(policy), explained, warnings };
        }
        Err(PolicyError::Unreadable { path, error }) => {
            let found = Found { file: path.display().to_string(), line: None, message: error.to_string() };
            (vec![found], Vec::new())
        }
        Err(PolicyError::Invalid(problems)) => {
            let found = problems.iter().map(|problem| Found {
                file: problem.file.clone(),
                line: Some(problem.line),
                message: problem.message.clone(),
            });
            (found.collect(), Vec::new())
        }
    };
    Findings { ok: false, problems, links, explained: Vec::new(), warnings: Vec::new() }
}

fn summaries(policy: &Policy) -> Vec<Summary> {
    let summary = |link: &Link| {
        let vifs: Vec<_> = policy.vifs.iter().filter(|vif| vif.link == link.name).collect();
        Summary {
            name: link.name.clone(),
            scheduler: link.scheduler.name(),
            rate: link.rate,
            min_rates: policy.guaranteed(link, Direction::Tx),
            vifs: vifs.len(),
            uplink: match &link.uplink {
                Uplink::None => "none".to_owned(),
                Uplink::Tap { name } => format!("tap {name}"),
                Uplink::Card { name } => format!("card {name}"),
                Uplink::Xdp { name } => format!("xdp {name}"),
                Uplink::Wire { to, .. } => format!("wire to {to}"),
            },
        }
    };
    policy.links.iter().map(summary).collect()
}

fn text(links: &[Summary]) -> String {
    let row = |link: &Summary| {
        let rate = link.rate.map_or("none".to_owned(), format_rate);
        let guaranteed = match (link.min_rates, link.rate) {
            (0, _) => "none".to_owned(),
            (sum, None) => format_rate(sum),
            (sum, Some(rate)) => format!("{} ({:.0}%)", format_rate(sum), sum as f64 / rate as f64 * 100.0),
        };
        let (name, scheduler, uplink) = (link.name.clone(), link.scheduler.to_owned(), link.uplink.clone());
        [name, scheduler, rate, guaranteed, link.vifs.to_string(), uplink]
    };
    let head = ["link", "scheduler", "rate", "min_rates", "vifs", "uplink"];
    table(head, [false, false, true, true, true, false], links.iter().map(row).collect())
}
