//! Lists the experiments.

use crate::out;
use fairlane_lab::MachineKind;
use fairlane_lab::experiment::Experiment;
use fairlane_report::text::table;
use serde::Serialize;

/// List the experiments, how long each takes and what it needs
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// Approximate seconds to boot the emulated machine with its guests.
const BOOT_SECONDS: f64 = 15.0;

/// An experiment as JSON.
#[derive(Serialize)]
struct Listed {
    name: String,
    source: String,
    figure: String,
    machines: Vec<MachineKind>,
    /// Including boots of the emulated PC.
    seconds: f64,
    /// CPUs that the machine has.
    cpus: usize,
    guests: usize,
    claims: usize,
}

/// Prints the list.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let listed: Vec<Listed> = super::all()?.into_iter().map(listed).collect();
    if args.json {
        return out::print_json(&listed);
    }
    let rows = listed.iter().map(|experiment| {
        let machines: Vec<&str> = experiment.machines.iter().map(|kind| kind.name()).collect();
        [
            experiment.name.clone(),
            experiment.source.clone(),
            format!("{:.0} min", (experiment.seconds / 60.0).ceil()),
            experiment.guests.to_string(),
            experiment.cpus.to_string(),
            experiment.claims.to_string(),
            machines.join(" "),
        ]
    });
    let head = ["experiment", "repeats", "takes", "guests", "CPUs", "claims", "machines"];
    out::print(&table(head, [false, false, true, true, true, true, false], rows.collect()))
}

fn listed(experiment: Experiment) -> Listed {
    let topologies = || experiment.cases.iter().map(|case| &case.topology);
    let cpus = |cpus: &Vec<usize>| cpus.iter().copied().max().map_or(0, |most| most + 1);
    let of_guests = topologies().flat_map(|topology| topology.guests.iter().map(|guest| cpus(&guest.cpus)));
    let of_hosts = topologies().map(|topology| cpus(&topology.host_cpus));
    Listed {
        seconds: experiment.seconds() + BOOT_SECONDS * experiment.boots() as f64,
        cpus: of_guests.chain(of_hosts).max().unwrap_or(0),
        guests: topologies().map(|topology| topology.guests.len()).max().unwrap_or(0),
        claims: experiment.claims.len(),
        name: experiment.name,
        source: experiment.source,
        figure: experiment.figure,
        machines: experiment.machines,
    }
}
