//! Manual pages, generated from the definition of the command line.

use crate::{Cli, out};
use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;
use std::path::PathBuf;

/// Print the manual page, or write the pages of all subcommands
#[derive(clap::Args)]
pub(crate) struct Args {
    /// An existing directory for one page per subcommand; without it, the page of fairlane itself is printed
    directory: Option<PathBuf>,
}

/// Prints or writes the pages.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.directory {
        Some(directory) => clap_mangen::generate_to(Cli::command(), &directory)
            .with_context(|| format!("cannot write manual pages to {}", directory.display())),
        None => {
            let mut page = Vec::new();
            Man::new(Cli::command()).render(&mut page)?;
            out::print(&String::from_utf8_lossy(&page))
        }
    }
}
