//! An experiment without a machine: somebody else carries out its plans, in virtual time.

use fairlane_report::ResultFile;
use serde_json::json;

use super::procedure::Finished;
use super::record::Record;
use super::run::{FIRST_PORT, conclude};
use super::{Account, Case, Experiment, Plan};
use crate::Node;

/// Runs all cases of an experiment once. `execute` carries out a case's plan and returns an account per command, the servers' first,
/// in the plan's order. What only the counters of a machine tell is not measured.
///
/// # Errors
/// Those of `execute`.
pub fn simulate<E>(
    experiment: &Experiment,
    machine: &str,
    mut execute: impl FnMut(&Case, &Plan) -> Result<Vec<Account>, E>,
) -> Result<ResultFile, E> {
    let mut result = ResultFile::new(&experiment.name);
    result.source(&experiment.source, &experiment.figure).machine(machine);
    let mut cases: Vec<Finished> = Vec::new();
    for case in &experiment.cases {
        let plan = case.procedure.plan(&case.topology, &Node::address, FIRST_PORT);
        let accounts = execute(case, &plan)?;
        let mut record = Record::default();
        case.procedure.read(&case.topology, &Node::address, &accounts, &mut record);
        record.repeats = 1;
        case.procedure.conclude(&case.topology, &mut record);
        let setting = json!({ "topology": case.topology, "procedure": format!("{:?}", case.procedure) });
        result.setting(&format!("case {}", if case.name.is_empty() { "-" } else { &case.name }), setting);
        cases.push(case.finished(record));
    }
    conclude(experiment, &cases, &mut result);
    Ok(result)
}
