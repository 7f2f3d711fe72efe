//! The JSON Schema of policy files.

use crate::out;

/// Print a JSON Schema of policy files, for editors
///
/// An editor with TOML support completes and checks a policy whose first line names the schema's file:
/// #:schema file:///usr/share/fairlane/policy.schema.json
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Prints the schema.
pub(crate) fn run(Args {}: Args) -> anyhow::Result<()> {
    out::print_json(&fairlane_policy::schema())
}
