//! `fairlane check`

use crate::workspace::{Outcome, Workspace, assert_done, assert_refused};

const WRONG: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
rate = "100Mbps"
[[vif]]
name = "web"
socket = "DIR/web.sock"
wieght = 30
early_ack = "on"
"#;

const WRONG_LINES: &str = r#"policy.toml:4: rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as "100Mbit/s" or "none", not "100Mbps"
policy.toml:8: unknown key `wieght` in [[vif]], did you mean `weight`? (its keys are name, link, tenant, socket, connect, owner, group, mode, packed, xen, queues, weight, min_rate, max_rate, burst, max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst, rx_queue, rx_timeout, mac, addresses, early_ack)
policy.toml:9: early_ack must be true, false, "stalled" (the same as true) or "always", not "on"
"#;

#[test]
fn a_valid_policy_is_summarized() {
    let workspace = Workspace::with_policy();
    let expected = "\
policy.toml: ok

link  scheduler       rate       min_rates  vifs  uplink
near  fair       100Mbit/s  20Mbit/s (20%)     1  wire to far
far   fair            none            none     0  none

link near: guests reach each other, and link far by a wire; together they send 100Mbit/s at most, shared by weight
link far: guests reach each other, and link near by its wire; what they send is shared by weight, without a limit of the link
vif web: 100% of near when all send (weight 30 of 30), first 20Mbit/s; a frontend connects at DIR/web.sock
";
    assert_done(&workspace.run("check policy.toml"), expected);
}

#[test]
fn every_problem_is_reported_with_its_line() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", WRONG);
    assert_refused(&workspace.run("check policy.toml"), 2, WRONG_LINES);
}

#[test]
fn problems_of_tables_about_sockets_and_of_drop_ins_have_their_lines() {
    let workspace = Workspace::new();
    workspace.write(
        "policy.toml",
        "sockets = { mode = 660 }\nobserve = { sokcet = \"/run/o\" }\n[[link]]\nname = \"lan\"\n",
    );
    workspace.write_drop_in("a.toml", "[remove]\nvif = \"web\"\n");
    let expected = r#"policy.toml:1: mode must be permissions in octal and in quotes, such as "0660", not 660
policy.toml:2: unknown key `sokcet` in observe, did you mean `socket`? (its keys are socket, group, mode)
policy.toml:2: socket is missing
policy.d/a.toml:2: vif must be a list in brackets, not "web"
"#;
    assert_refused(&workspace.run("check policy.toml"), 2, expected);
}

#[test]
fn a_key_by_its_old_name_is_read_with_a_warning() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", "[[link]]\nname = \"lan\"\ndelay = \"20ms\"\n");
    let outcome = workspace.run("check policy.toml");
    assert_eq!(
        (outcome.code, outcome.err.as_str()),
        (Some(0), "warning: policy.toml:3: delay is called idle_timeout now\n")
    );
}

#[test]
fn where_weights_are_ignored_none_is_promised() {
    let workspace = Workspace::new();
    let vif =
        |name: &str, weight: u32| format!("[[vif]]\nname = \"{name}\"\nsocket = \"DIR/{name}\"\nweight = {weight}\n");
    let link = "control = \"DIR/c\"\n[[link]]\nname = \"lan\"\nscheduler = \"netback\"\n";
    workspace.write("policy.toml", &format!("{link}{}{}", vif("web", 300), vif("batch", 100)));
    let out = workspace.run("check policy.toml").out;
    for name in ["web", "batch"] {
        assert!(out.contains(&format!("vif {name}: 50% of lan when all send (in turns); ")), "{out}");
    }
}

/// A host with a bridge and its port, and another interface, all of which might be containers'.
const HOST: &str = "mount -t sysfs sysfs /sys && ip link add br0 type bridge && ip link add eth0 type veth peer name far0 && \
    ip link set eth0 master br0 up && ip link set br0 up && ip address add 10.1.0.1/24 dev br0 && \
    ip link add eth1 type veth peer name far1 && ip link set eth1 up";

/// Runs a line of shell in namespaces with this host's network. None without root.
fn on_host(workspace: &Workspace, line: &str) -> Option<Outcome> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: network namespaces need root");
        return None;
    }
    Some(workspace.run_program("unshare", &["--net", "--mount", "sh", "-c", &format!("{HOST} && {line}")]))
}

#[test]
fn what_will_not_work_is_warned_of() {
    let workspace = Workspace::new();
    workspace.write(
        "policy.toml",
        "control = \"DIR/gone/control.sock\"\n[[link]]\nname = \"lan\"\nuplink = { card = \"eth0\" }\n\
         [[link]]\nname = \"far\"\nuplink = { xdp = \"eth7\" }\n[[link]]\nname = \"own\"\nuplink = { tap = \"fl0\" }\n\
         [[link]]\nname = \"old\"\nuplink = { tap = \"fl9\" }\n",
    );
    let fairlane = env!("CARGO_BIN_EXE_fairlane");
    let check =
        format!("ip tuntap add dev fl9 mode tap && setpriv --bounding-set=-net_raw {fairlane} check policy.toml");
    let Some(outcome) = on_host(&workspace, &check) else { return };
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    for warning in [
        "link lan: eth0 is a port of br0, so host and guests would both receive its frames: use a tap in br0, or `ip link set eth0 nomaster`",
        "link lan: opening it takes CAP_NET_RAW, which this user does not have; fairlane.service has it",
        "link far: there is no interface eth7: the backend does not start without it",
        "link own: there is no tap fl0 yet: ",
        "link old: the tap fl9 is down: ",
        "link old: the tap fl9 has one queue, ",
        "control: there is no directory DIR/gone: make it",
    ] {
        assert!(outcome.out.contains(&format!("\nwarning: {warning}")), "{warning}\n{}", outcome.out);
    }
}

#[test]
fn a_policy_for_this_host_is_written_once_and_works() {
    let workspace = Workspace::new();
    let fairlane = env!("CARGO_BIN_EXE_fairlane");
    let make = format!(
        "ip tuntap add dev fl0 mode tap multi_queue && ip link set fl0 master br0 up && {fairlane} check policy.toml"
    );
    let Some(outcome) = on_host(&workspace, &format!("{fairlane} init policy.toml && {make}")) else { return };
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    assert!(outcome.out.starts_with("policy.toml: guests reach the bridge br0 by the tap fl0\n"), "{}", outcome.out);
    let warnings: Vec<&str> = outcome.out.lines().filter(|line| line.starts_with("warning: link")).collect();
    assert_eq!(warnings, [""; 0], "what it writes works here");
    let written = std::fs::read_to_string(workspace.path("policy.toml")).unwrap();
    assert!(written.contains("port of the bridge br0 (its ports now: eth0)"), "{written}");

    workspace.write("policy.toml", "mine");
    assert_refused(&workspace.run("init policy.toml"), 1, "policy.toml exists: --force replaces it\n");
    assert_eq!(std::fs::read_to_string(workspace.path("policy.toml")).unwrap(), "mine");
    let Some(outcome) = on_host(&workspace, &format!("ip link del br0 && {fairlane} init --force policy.toml")) else {
        return;
    };
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let written = std::fs::read_to_string(workspace.path("policy.toml")).unwrap();
    assert!(written.contains("\n# uplink = { tap = \"fl0\" }"), "{written}");
}

#[test]
fn findings_are_printed_as_json() {
    let workspace = Workspace::with_policy();
    let outcome = workspace.run("check --json policy.toml");
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    let found: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(found["ok"], true);
    assert_eq!(found["links"][0]["min_rates"], 20_000_000);

    workspace.write("policy.toml", WRONG);
    let outcome = workspace.run("check --json policy.toml");
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(2), WRONG_LINES));
    let found: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!((&found["ok"], &found["problems"][1]["line"]), (&false.into(), &8.into()));
    assert_eq!(found["problems"][1]["file"], "policy.toml");
}

#[test]
fn an_unreadable_file_is_reported() {
    let workspace = Workspace::new();
    let gone = "cannot read policy gone.toml: No such file or directory (os error 2)\n";
    assert_refused(&workspace.run("check gone.toml"), 2, gone);
    std::fs::write(workspace.path("binary.toml"), [0xff, 0xfe]).unwrap();
    let binary = "cannot read policy binary.toml: stream did not contain valid UTF-8\n";
    assert_refused(&workspace.run("check binary.toml"), 2, binary);
}

#[test]
fn the_example_is_valid() {
    let workspace = Workspace::new();
    let outcome = workspace.run(&format!("check {}/../../examples/policy.toml", env!("CARGO_MANIFEST_DIR")));
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
}
