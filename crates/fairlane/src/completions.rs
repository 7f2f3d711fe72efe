//! Shell completions, generated from the definition of the command line.

use crate::{Cli, out};
use clap::CommandFactory;
use clap_complete::Shell;

/// Print the completions for a shell
///
/// For bash: fairlane completions bash > /etc/bash_completion.d/fairlane
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the completions.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fairlane", &mut script);
    out::print(&String::from_utf8_lossy(&script))
}
