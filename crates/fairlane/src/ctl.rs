//! Shows and changes a running backend through its control socket.

use crate::backend::Backend;
use crate::{figures, out, policy_file, save};
use anyhow::{Context, bail};
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fairlane_core::time::Nanos;
use fairlane_engine::Waiting;
use fairlane_engine::control::{Add, Client};
use fairlane_engine::snapshot::{FlowState, LeftOut, LinkState, PortState, Snapshot, State, TenantState, VifState};
use fairlane_policy::Kind;
use fairlane_policy::units::{format_duration, format_rate, format_size, parse_size};
use fairlane_report::text::table;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Show and change a running backend
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: Backend,
    /// Print the answer as the control protocol's JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show links and vifs: their settings, state and share
    Show {
        /// Show something other than links and vifs
        #[command(subcommand)]
        what: Option<What>,
    },
    /// Change settings of a vif, tenant or link, as in the policy file
    ///
    /// For example: fairlane ctl set web weight=30 max_rate=50Mbit/s. Of a vif or tenant: weight, min_rate, max_rate, burst, max_frames, frame_burst, and the same with rx_ in front. Of a tenant: min_rate_on.LINK. Of a vif: rx_queue, rx_timeout, early_ack, tenant. Of a link: rate, rx_rate, scheduler, prioritize, refill, idle_timeout, isolate, rx_pool.
    /// Settings are applied in order, up to the first that is refused. The policy file is not changed.
    Set {
        /// The vif, tenant or link
        name: String,
        /// What to change
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
        settings: Vec<(String, String)>,
    },
    /// Add a vif, tenant or link, with the keys of a policy file
    ///
    /// For example: fairlane ctl add vif web socket=/run/fairlane/web.sock weight=30. Values need no quotes: addresses=10.0.0.1,fd00::1 mode=0660. Parts of an uplink have a dot: fairlane ctl add link lan rate=1Gbit/s uplink.tap=fl0.
    /// It is served until the backend ends; `fairlane ctl save` keeps it.
    Add {
        /// What to add
        #[arg(value_parser = kinds())]
        kind: Kind,
        /// Its name
        name: String,
        /// Its keys
        #[arg(value_name = "KEY=VALUE", value_parser = setting)]
        settings: Vec<(String, String)>,
        /// Replace the one with this name, if there is one; a card with the same socket, link and queues stays connected
        #[arg(long)]
        replace: bool,
    },
    /// Remove a vif, tenant or link
    ///
    /// A tenant or link with vifs is not removed: remove them first.
    Remove {
        /// What to remove
        #[arg(value_parser = kinds())]
        kind: Kind,
        /// Its name
        name: String,
    },
    /// Keep what was added, changed and removed: write it to a drop-in file
    ///
    /// The file is saved.toml in the directory of drop-ins beside the policy file that the backend was started with (policy.d for policy.toml). This command writes it, so it takes the permission to.
    Save,
    /// Load a policy file and its drop-ins
    ///
    /// If the policy file has any error, the running policy is kept. A drop-in with an error keeps its former state. What `ctl add` added stays.
    Reload {
        /// The policy file
        file: PathBuf,
    },
    /// Record the frames of a vif in a new pcap file
    Capture {
        /// The vif
        vif: String,
        /// The file to write; the backend creates it
        #[arg(required_unless_present = "stop")]
        file: Option<PathBuf>,
        /// Largest number of bytes to record of each frame [default: all]
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
        snap: Option<u32>,
        /// File size at which the recording ends, such as 64MiB [default: 1GiB]
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        limit: Option<u64>,
        /// End the recording and show a summary
        #[arg(long, conflicts_with_all = ["file", "snap", "limit"])]
        stop: bool,
    },
    /// Show counters since the backend started: frames, bytes, waits, drops by reason
    Stats,
    /// Move the TCP flows of a vif with early ack to another backend, with the data that its guest has yet to receive
    #[command(subcommand)]
    Flows(Flows),
    /// Stop the backend
    Stop,
}

#[derive(Subcommand)]
enum What {
    /// Show the TCP flows in early ack's tables
    Flows,
}

#[derive(Subcommand)]
enum Flows {
    /// Write a vif's flows to a new file; its guest must be paused
    Export {
        /// The vif
        vif: String,
        /// The file to write; the backend creates it
        file: PathBuf,
    },
    /// Load a vif's flows from a file, before its guest resumes
    Import {
        /// The vif
        vif: String,
        /// The file that another backend exported; the backend reads it
        file: PathBuf,
    },
}

/// Parses the name of a kind.
fn kinds() -> impl TypedValueParser<Value = Kind> {
    let names = Kind::ALL.map(|kind| {
        PossibleValue::new(kind.name()).help(match kind {
            Kind::Vif => "A guest's network card",
            Kind::Tenant => "An owner of guests",
            Kind::Link => "Guests that can reach each other, and their uplink",
        })
    });
    let of_name = |name: String| Kind::ALL.into_iter().find(|kind| kind.name() == name).expect("a possible value");
    PossibleValuesParser::new(names).map(of_name)
}

/// Parses `KEY=VALUE`.
fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE, such as weight=30")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Sends the command and prints the answer.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut client = args.backend.connect()?;
    let json = args.json;
    match args.command {
        Command::Show { what: Some(What::Flows) } => {
            let shown = client.flows()?;
            answer(json, &shown, &flows(&shown))
        }
        Command::Show { what: None } => {
            let shown = client.show()?;
            answer(json, &shown, &show(&shown))
        }
        Command::Stats => {
            let shown = client.show()?;
            answer(json, &shown, &stats(&shown))
        }
        Command::Set { name, settings } => {
            set(&mut client, &name, &settings)?;
            answer(json, &(), "")
        }
        Command::Add { kind, name, settings, replace } => {
            client.add(Add { kind, name, settings, replace })?;
            answer(json, &(), "")
        }
        Command::Remove { kind, name } => {
            client.remove(kind, &name)?;
            answer(json, &(), "")
        }
        Command::Save => {
            let saved = save::save(&mut client)?;
            answer(json, &saved, &format!("{} written\n", saved.display()))
        }
        Command::Reload { file } => {
            let files = policy_file::files(&file).map_err(|error| anyhow::anyhow!("{error}"))?;
            let changes = client.load(&files)?;
            answer(json, &changes, &format!("{}\n", figures::count(changes, "change")))
        }
        Command::Flows(Flows::Export { vif, file }) => {
            let bytes = client.export_flows(&vif, &absolute(&file)?)?;
            answer(json, &bytes, &format!("{} written\n", figures::size(bytes)))
        }
        Command::Flows(Flows::Import { vif, file }) => {
            let imported = client.import_flows(&vif, &absolute(&file)?)?;
            answer(json, &imported, &format!("{} taken over\n", figures::count(imported as usize, "flow")))
        }
        Command::Capture { vif, file: Some(file), snap, limit, .. } => {
            client.start_capture(&vif, &absolute(&file)?, snap, limit)?;
            answer(json, &(), "")
        }
        Command::Capture { vif, file: None, .. } => stop_capture(&mut client, json, &vif),
        Command::Stop => {
            client.stop()?;
            answer(json, &(), "")
        }
    }
}

fn stop_capture(client: &mut Client, json: bool, vif: &str) -> anyhow::Result<()> {
    let report = client.stop_capture(vif)?;
    let mut text = format!("{} frames, {} written", report.frames, figures::size(report.bytes));
    if report.left_out > 0 {
        text += &format!(", {} frames left out", report.left_out);
    }
    answer(json, &report, &format!("{text}\n"))?;
    match report.ended {
        Some(reason) => bail!("the capture of {vif} ended before it was stopped: {reason}"),
        None => Ok(()),
    }
}

/// Prints the protocol's answer as JSON, or `text`.
fn answer(json: bool, answer: &impl Serialize, text: &str) -> anyhow::Result<()> {
    if json { out::print_json(answer) } else { out::print(text) }
}

/// An absolute path, since the backend has another working directory.
fn absolute(file: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(file).with_context(|| format!("no file {}", file.display()))
}

fn set(client: &mut Client, name: &str, settings: &[(String, String)]) -> anyhow::Result<()> {
    for (index, (key, value)) in settings.iter().enumerate() {
        client.set(name, key, value).map_err(|error| {
            let done: Vec<_> = settings[..index].iter().map(|(key, value)| format!("{key}={value}")).collect();
            let done = if done.is_empty() { String::new() } else { format!(" ({} is set)", done.join(" ")) };
            anyhow::anyhow!("{error}{done}")
        })?;
    }
    Ok(())
}

/// Formats settings, states and shares.
fn show(shown: &Snapshot) -> String {
    let rate = |rate: Option<u64>| rate.map_or("none".to_owned(), format_rate);
    let frames = |frames: Option<u64>| frames.map_or("none".to_owned(), |frames| frames.to_string());
    let link = |link: &LinkState| {
        [
            link.name.clone(),
            link.scheduler.clone(),
            rate(link.rate),
            rate(link.rx_rate),
            format_duration(Nanos(link.idle_timeout)),
            link.isolate.to_string(),
            link.cpu.map_or("any".to_owned(), |cpu| cpu.to_string()),
            link.uplink.as_ref().map_or("none", |uplink| uplink.state.name()).to_owned(),
        ]
    };
    let vif = |vif: &VifState| {
        [
            vif.name.clone(),
            vif.link.clone(),
            vif.tenant.clone().unwrap_or_default(),
            figures::state(vif),
            vif.weight.to_string(),
            figures::share(vif.share),
            rate(Some(vif.min_rate).filter(|rate| *rate > 0)),
            rate(vif.max_rate),
            format_size(vif.burst),
            frames(vif.max_frames),
            vif.waits_for.clone().unwrap_or_default(),
        ]
    };
    let head = ["link", "scheduler", "rate", "rx_rate", "idle timeout", "isolate", "cpu", "uplink"];
    let right = [false, false, true, true, true, false, false, false];
    let mut text = table(head, right, shown.links.iter().map(link).collect());
    let guaranteed = |tenant: &TenantState| {
        let shown = |min_rate: u64| rate(Some(min_rate).filter(|rate| *rate > 0));
        let on = tenant.min_rate_on.iter().map(|(link, min_rate)| format!("; {} on {link}", shown(*min_rate)));
        shown(tenant.min_rate) + &on.collect::<String>()
    };
    let tenant = |tenant: &TenantState| {
        [
            tenant.name.clone(),
            tenant.weight.to_string(),
            tenant_share(shown, &tenant.name),
            guaranteed(tenant),
            rate(tenant.max_rate),
            frames(tenant.max_frames),
            tenant.rx_weight.to_string(),
            rate(Some(tenant.rx_min_rate).filter(|rate| *rate > 0)),
            rate(tenant.rx_max_rate),
            frames(tenant.rx_max_frames),
        ]
    };
    let head = [
        "tenant",
        "weight",
        "share",
        "min_rate",
        "max_rate",
        "max_frames",
        "rx_weight",
        "rx_min_rate",
        "rx_max_rate",
        "rx_max_frames",
    ];
    if !shown.tenants.is_empty() {
        let rows = shown.tenants.iter().map(tenant).collect();
        text += &format!("\n{}", table(head, [false, true, true, true, true, true, true, true, true, true], rows));
    }
    let head = [
        "vif",
        "link",
        "tenant",
        "state",
        "weight",
        "share",
        "min_rate",
        "max_rate",
        "burst",
        "max_frames",
        "waits for",
    ];
    let right = [false, false, false, false, true, true, true, true, true, true, false];
    if !shown.vifs.is_empty() {
        text += &format!("\n{}", table(head, right, shown.vifs.iter().map(vif).collect()));
    }
    let receive = |vif: &VifState| {
        let receive = &vif.receive;
        [
            vif.name.clone(),
            receive.weight.to_string(),
            rate(Some(receive.min_rate).filter(|rate| *rate > 0)),
            rate(receive.max_rate),
            format_size(receive.burst),
            frames(receive.max_frames),
            format_size(receive.queue),
            format_duration(Nanos(receive.timeout)),
            receive.queued_frames.to_string(),
        ]
    };
    let head = [
        "vif",
        "rx_weight",
        "rx_min_rate",
        "rx_max_rate",
        "rx_burst",
        "rx_max_frames",
        "rx_queue",
        "rx_timeout",
        "queued frames",
    ];
    let right = [false, true, true, true, true, true, true, true, true];
    if !shown.vifs.is_empty() {
        text += &format!("\n{}", table(head, right, shown.vifs.iter().map(receive).collect()));
    }
    for (name, port) in ports(shown) {
        if let State::Disabled { reason } = &port.state {
            text += &format!("\n{name} is disabled: {reason}\n");
        }
    }
    for LeftOut { name, .. } in &shown.left_out {
        text += &format!("\n{name} is not served: it could not be opened, and the log says why\n");
    }
    text
}

/// A tenant's share of each link on which it has vifs.
fn tenant_share(shown: &Snapshot, tenant: &str) -> String {
    let shares: Vec<(&str, f64)> = shown
        .tenant_shares()
        .into_iter()
        .filter(|((of, _), _)| *of == tenant)
        .map(|((_, link), share)| (link, share))
        .collect();
    let several = shares.len() > 1;
    let share = |(link, share)| {
        let share = figures::share(share);
        if several { format!("{share} of {link}") } else { share }
    };
    shares.into_iter().map(share).collect::<Vec<_>>().join(", ")
}

/// Formats counters since the start.
fn stats(shown: &Snapshot) -> String {
    let vifs = shown.vifs.iter().map(Some).chain(std::iter::repeat(None));
    let row = |((name, port), vif): ((String, &PortState), Option<&VifState>)| {
        let quantile = |waiting: Option<&Waiting>, q| {
            waiting.and_then(|waiting| waiting.quantile(q)).map_or("-".to_owned(), figures::time)
        };
        let (sending, receiving) = (vif.map(|vif| &vif.waiting), vif.map(|vif| &vif.receive.waiting));
        let drops: Vec<_> = port.drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        [
            name,
            port.sent_frames.to_string(),
            figures::size(port.sent_bytes),
            port.received_frames.to_string(),
            figures::size(port.received_bytes),
            quantile(sending, 0.5),
            quantile(sending, 0.99),
            quantile(receiving, 0.99),
            vif.map_or("-".to_owned(), |vif| vif.receive.marked_frames.to_string()),
            if drops.is_empty() { "none".to_owned() } else { drops.join(", ") },
        ]
    };
    let head = [
        "port",
        "sent frames",
        "bytes",
        "received frames",
        "bytes",
        "waited p50 <",
        "p99 <",
        "rx waited p99 <",
        "marked",
        "drops",
    ];
    let right = [false, true, true, true, true, true, true, true, true, false];
    table(head, right, ports(shown).zip(vifs).map(row).collect())
}

/// Formats early ack's flows.
fn flows(shown: &[FlowState]) -> String {
    if shown.is_empty() {
        return "no flows\n".to_owned();
    }
    let row = |flow: &FlowState| {
        [
            flow.vif.clone(),
            flow.outside.to_string(),
            flow.inside.to_string(),
            flow.state.clone(),
            figures::size(flow.retained.into()),
            figures::size(flow.owed.into()),
            flow.early_acks.to_string(),
            flow.suppressed.to_string(),
            flow.retransmissions.to_string(),
            flow.fallback.clone().unwrap_or_default(),
        ]
    };
    let head = [
        "vif",
        "outside",
        "guest",
        "state",
        "retained",
        "owed",
        "early acks",
        "suppressed",
        "retransmissions",
        "fallback",
    ];
    let right = [false, false, false, false, true, true, true, true, true, false];
    table(head, right, shown.iter().map(row).collect())
}

/// All vifs, then all uplinks.
fn ports(shown: &Snapshot) -> impl Iterator<Item = (String, &PortState)> {
    let uplinks =
        shown.links.iter().filter_map(|link| Some((format!("uplink of {}", link.name), link.uplink.as_ref()?)));
    shown.vifs.iter().map(|vif| (vif.name.clone(), &vif.port)).chain(uplinks)
}
