//! libvirt's hook: adds the cards of a guest that starts, and removes those of one that stopped.
//!
//! libvirt runs `/etc/libvirt/hooks/qemu GUEST OPERATION SUB-OPERATION EXTRA` with the guest's XML as input, and waits for it. It does
//! not start a guest whose hook fails.

mod domain;

use crate::backend::Backend;
use crate::save;
use anyhow::Context;
use domain::Interface;
use fairlane_engine::control::{Add, Client};
use fairlane_engine::snapshot::Snapshot;
use fairlane_policy::Kind;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most bytes of a guest's XML.
const LONGEST: u64 = 16 << 20;

/// Add or remove a guest's cards, as a hook of libvirt
///
/// libvirt runs it with these arguments and the guest's XML as input. Every vhostuser interface whose socket is in the directory of the control socket is a vif, named after its socket: web for web.sock. `<bandwidth>` sets its rates, and `<fairlane:vif xmlns:fairlane="urn:fairlane:1" name="web" .../>` in `<metadata>` any other key. A vif that a policy file names is left as it is.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: Backend,
    /// The guest's name
    guest: String,
    /// What happens to it: prepare, start, started, stopped, release, reconnect, ...
    operation: String,
    /// begin or end, and another argument
    #[arg(num_args = 0.., hide = true)]
    more: Vec<String>,
}

/// What an operation asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Add cards, or give those of an earlier run of the guest their present settings.
    Renew,
    /// Add cards that are not there.
    Add,
    Remove,
}

/// Carries out an operation.
///
/// # Errors
/// The guest must not start: a card of it cannot be served.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let wish = match args.operation.as_str() {
        "prepare" => Wish::Renew,
        "start" | "reconnect" => Wish::Add,
        "stopped" | "release" => Wish::Remove,
        // Nothing to do: the cards are there, and stay.
        "started" | "migrate" | "restore" | "attach" => return Ok(()),
        other => {
            eprintln!("fairlane: libvirt's operation `{other}` is not known, and nothing is done");
            return Ok(());
        }
    };
    let mut xml = String::new();
    let read = std::io::stdin().take(LONGEST).read_to_string(&mut xml).map_err(anyhow::Error::from);
    let interfaces = match read.and_then(|_| domain::interfaces(&xml)) {
        Ok(interfaces) => interfaces,
        Err(error) => {
            eprintln!("fairlane: the XML of guest {} is not understood, and nothing is done: {error:#}", args.guest);
            return Ok(());
        }
    };
    let place = args.backend.control.parent().map(canonical);
    let ours: Vec<Interface> =
        interfaces.into_iter().filter(|card| card.socket.parent().map(canonical) == place).collect();
    if ours.is_empty() {
        return Ok(());
    }
    let done = carry_out(&args.backend, wish, &ours).with_context(|| format!("guest {}", args.guest));
    match done {
        Err(error) if wish == Wish::Remove => {
            // The guest is gone in any case.
            eprintln!("fairlane: {error:#}");
            Ok(())
        }
        done => done,
    }
}

fn carry_out(backend: &Backend, wish: Wish, cards: &[Interface]) -> anyhow::Result<()> {
    let mut client = backend.connect()?;
    let shown = client.show()?;
    let mut changed = false;
    for card in cards {
        changed |= carry_out_for(&mut client, wish, card, &shown)?;
    }
    if changed && let Err(error) = save::save(&mut client) {
        let what = match wish {
            Wish::Renew | Wish::Add => "the guest is served until Fairlane ends, as its cards are not saved",
            Wish::Remove => "the guest's cards are back when Fairlane starts again, as their end is not saved",
        };
        eprintln!("fairlane: {what}: {error:#}");
    }
    Ok(())
}

/// Carries out an operation for one card. Returns whether anything changed.
fn carry_out_for(client: &mut Client, wish: Wish, card: &Interface, shown: &Snapshot) -> anyhow::Result<bool> {
    let name = card.socket.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let served = shown.vifs.iter().find(|vif| vif.name == name).map(|vif| vif.added);
    let left_out = || shown.left_out.iter().find(|vif| vif.name == name).map(|vif| vif.added);
    match (wish, served) {
        (Wish::Renew | Wish::Add, Some(false)) => {
            eprintln!("fairlane: vif {name} is in a policy file, and left as it is there");
            Ok(false)
        }
        (Wish::Add, Some(_)) => Ok(false),
        (Wish::Renew | Wish::Add, _) => {
            client.add(Add { kind: Kind::Vif, name, settings: card.settings(), replace: true })?;
            Ok(true)
        }
        (Wish::Remove, added) => {
            let is_ours = added.or_else(left_out) == Some(true);
            if is_ours {
                client.remove(Kind::Vif, &name)?;
            }
            Ok(is_ours)
        }
    }
}

/// A directory by its only name: `/var/run` is `/run`.
fn canonical(directory: &Path) -> PathBuf {
    directory.canonicalize().unwrap_or_else(|_| directory.to_owned())
}
