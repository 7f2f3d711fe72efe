//! `fairlane ctl` and `fairlane top` with a running backend, and without.

use crate::workspace::{POLICY, Workspace, assert_done, assert_refused};

#[test]
fn shows_settings_and_states() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    let expected = "\
link  scheduler       rate  rx_rate  idle timeout  isolate  cpu  uplink
near  fair       100Mbit/s     none         100ms  false    any  up
far   fair       100Mbit/s     none         100ms  false    any  up

vif  link  tenant  state    weight  share  min_rate  max_rate  burst  max_frames  waits for
web  near          waiting      30  0.000  20Mbit/s      none  64KiB        none

vif  rx_weight  rx_min_rate  rx_max_rate  rx_burst  rx_max_frames  rx_queue  rx_timeout  queued frames
web         30         none         none     64KiB           none      4MiB       500ms              0
";
    assert_done(&workspace.ctl("show"), expected);
    let shown: serde_json::Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
    assert_eq!((&shown["vifs"][0]["name"], &shown["vifs"][0]["state"]), (&"web".into(), &"waiting".into()));
    let expected = "\
port            sent frames  bytes  received frames  bytes  waited p50 <  p99 <  rx waited p99 <  marked  drops
web                       0     0B                0     0B             -      -                -       0  none
uplink of near            0     0B                0     0B             -      -                -       -  none
uplink of far             0     0B                0     0B             -      -                -       -  none
";
    assert_done(&workspace.ctl("stats"), expected);
    assert_eq!(workspace.run("ctl stats --json --control DIR/control.sock").code, Some(0));
}

#[test]
fn changes_settings() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    assert_done(&workspace.ctl("set web weight=7 max_rate=50Mbit/s"), "");
    assert_done(&workspace.ctl("set near --json scheduler=fair"), "null\n");
    let shown = workspace.ctl("show").out;
    assert!(shown.contains("web  near          waiting       7  0.000  20Mbit/s  50Mbit/s"), "{shown}");

    // A vif without rx_weight receives by its weight.
    assert!(shown.contains("web          7         none"), "{shown}");
    assert_done(&workspace.ctl("set web rx_weight=40 rx_max_rate=1Gbit/s rx_queue=1MiB rx_timeout=90ms"), "");
    let shown = workspace.ctl("show").out;
    assert!(
        shown.contains("web         40         none      1Gbit/s  1250000B           none      1MiB        90ms"),
        "{shown}"
    );
    assert_done(&workspace.ctl("set near rx_pool=1GiB rx_rate=90Mbit/s"), "");
    assert_done(&workspace.ctl("set web max_frames=20000 rx_max_frames=100"), "");
    let shown = workspace.ctl("show").out;
    assert!(shown.contains("near  fair       100Mbit/s  90Mbit/s"), "{shown}");
    assert!(shown.contains("20Mbit/s  50Mbit/s  64KiB       20000"), "{shown}");

    assert_refused(&workspace.ctl("set wbe weight=7"), 1, "no vif is named `wbe`, did you mean `web`?\n");
    // Settings are applied in order, up to the first that is refused.
    let above = "min_rate 60Mbit/s of vif `web` is above its max_rate 50Mbit/s (weight=8 is set)\n";
    assert_refused(&workspace.ctl("set web weight=8 min_rate=60Mbit/s burst=9MiB"), 1, above);
    let outcome = workspace.ctl("set web weight");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.err.contains("must be KEY=VALUE, such as weight=30"), "{}", outcome.err);
}

#[test]
fn changes_tenants() {
    let workspace = Workspace::with_policy();
    workspace.write("policy.toml", &(POLICY.to_owned() + "\n[[tenant]]\nname = \"red\"\nmin_rate = \"20Mbit/s\"\n"));
    let _backend = workspace.up();
    assert_done(&workspace.ctl("set red weight=300 rx_max_rate=1Gbit/s max_frames=5000"), "");
    assert_done(&workspace.ctl("set web tenant=red"), "");
    let shown = workspace.ctl("show").out;
    let expected = "\
tenant  weight  share  min_rate  max_rate  max_frames  rx_weight  rx_min_rate  rx_max_rate  rx_max_frames
red        300  0.000  20Mbit/s      none        5000        300         none      1Gbit/s           none

vif  link  tenant  state    weight  share  min_rate  max_rate  burst  max_frames  waits for
web  near  red     waiting      30  0.000  20Mbit/s      none  64KiB        none
";
    assert!(shown.contains(expected), "{shown}");
    let unknown = "no tenant is named `blue`, the tenants are red\n";
    assert_refused(&workspace.ctl("set web tenant=blue"), 1, unknown);
    assert_done(&workspace.ctl("set web tenant=none"), "");
    assert!(!workspace.ctl("show").out.contains("near  red"));
}

#[test]
fn reloads_a_policy_or_keeps_the_old_one() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    workspace.write("newer.toml", &POLICY.replace("weight = 30", "weight = 70"));
    assert_done(&workspace.ctl("reload newer.toml"), "1 change\n");
    assert_done(&workspace.ctl("reload newer.toml --json"), "0\n");
    workspace.write("bad.toml", &POLICY.replace("weight = 30", "weight = 0\nqueues = 17"));
    let problems = "bad.toml:12: weight must be 1 to 10000, not 0\nbad.toml:13: queues must be 1 to 16, not 17\n";
    assert_refused(&workspace.ctl("reload bad.toml"), 1, problems);
    let shown: serde_json::Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
    assert_eq!(shown["vifs"][0]["weight"], 70);
    let gone = "cannot read policy gone.toml: No such file or directory (os error 2)\n";
    assert_refused(&workspace.ctl("reload gone.toml"), 1, gone);
}

#[test]
fn captures_a_vif_into_a_new_file() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    // The path is relative to the command's directory, not to the backend's.
    assert_done(&workspace.ctl("capture web web.pcap --snap 96"), "");
    assert!(workspace.path("web.pcap").exists());
    let again = "vif `web` is under capture already: stop that one first\n";
    assert_refused(&workspace.ctl("capture web other.pcap"), 1, again);
    assert_done(&workspace.ctl("capture web --stop"), "0 frames, 24B written\n");
    assert_refused(&workspace.ctl("capture web --stop"), 1, "vif `web` is not under capture\n");
    assert_refused(
        &workspace.ctl("capture web web.pcap"),
        1,
        "cannot write to DIR/web.pcap: File exists (os error 17)\n",
    );
    assert_done(&workspace.ctl("capture web small.pcap --limit 1KiB"), "");
    let report: serde_json::Value = serde_json::from_str(&workspace.ctl("capture web --stop --json").out).unwrap();
    assert_eq!(report, serde_json::json!({ "frames": 0, "bytes": 24, "left_out": 0, "ended": null }));
    assert!(workspace.ctl("capture web other.pcap --limit 1").err.contains("must be a number and a unit"));
    assert_eq!(workspace.ctl("capture web").code, Some(2));
    assert_eq!(workspace.ctl("capture web other.pcap --stop").code, Some(2));
    assert!(!workspace.path("other.pcap").exists());
}

#[test]
fn turns_early_ack_on_and_off_and_moves_flows() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    assert_done(&workspace.ctl("show flows"), "no flows\n");
    let off = "vif `web` has no early ack: turn it on with early_ack = true\n";
    assert_refused(&workspace.ctl("flows export web DIR/web.flows"), 1, off);
    assert_done(&workspace.ctl("set web early_ack=always"), "");
    let early = || {
        let shown: serde_json::Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
        shown["vifs"][0]["early_ack"].clone()
    };
    assert_eq!((&early()["mode"], &early()["engaged"]), (&"always".into(), &true.into()));
    assert!(workspace.path("control.sock.early-ack/web").exists());
    assert_done(&workspace.ctl("show --json flows"), "[]\n");

    // The path is this command's, not the backend's.
    assert_done(&workspace.ctl("flows export web web.flows"), "10B written\n");
    let again = "cannot write to DIR/web.flows: File exists (os error 17)\n";
    assert_refused(&workspace.ctl("flows export web web.flows"), 1, again);
    assert_done(&workspace.ctl("flows import web web.flows"), "0 flows taken over\n");
    let foreign = "cannot take flows over from DIR/policy.toml: not an export of flows: it must begin with FLACK\n";
    assert_refused(&workspace.ctl("flows import web policy.toml"), 1, foreign);
    let gone = "cannot take flows over from DIR/gone: No such file or directory (os error 2)\n";
    assert_refused(&workspace.ctl("flows import web gone"), 1, gone);
    assert_refused(&workspace.ctl("flows export wbe x"), 1, "no vif is named `wbe`, the vifs are web\n");

    assert_done(&workspace.ctl("set web early_ack=stalled"), "");
    assert_eq!((&early()["mode"], &early()["engaged"]), (&"stalled".into(), &false.into()));
    assert_done(&workspace.ctl("set web early_ack=false"), "");
    for _ in 0..1000 {
        if early().is_null() {
            break;
        }
    }
    assert!(
        early().is_null() && !workspace.path("control.sock.early-ack/web").exists(),
        "early ack's file is left behind"
    );
}

#[test]
fn early_ack_without_a_file_is_refused() {
    let workspace = Workspace::with_policy();
    workspace.write("control.sock.early-ack", "in the way");
    let _backend = workspace.up();
    let outcome = workspace.ctl("set web early_ack=true");
    let expected = "vif `web`: cannot keep early ack in DIR/control.sock.early-ack/web: ";
    assert!(outcome.code == Some(1) && outcome.err.starts_with(expected), "{outcome:?}");
}

#[test]
fn prints_one_table_of_rates() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    let expected = "\
link  scheduler       rate     out  used      in  uplink
near  fair       100Mbit/s  0bit/s  0.0%  0bit/s  up
far   fair       100Mbit/s  0bit/s  0.0%  0bit/s  up

vif  link  state      sent  received  share  due  drops/s  p50 <  p99 <
web  near  waiting  0bit/s    0bit/s  0.000    -        0      -      -
";
    assert_done(&workspace.run("top --once --interval 100ms --control DIR/control.sock"), expected);
}

#[test]
fn a_live_table_needs_a_terminal() {
    let workspace = Workspace::new();
    let message = "a live table needs a terminal; `fairlane top --once` prints a plain one\n";
    assert_refused(&workspace.run("top"), 1, message);
    let outcome = workspace.run("top --once --interval 1");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.err.contains("must be a number and a unit"), "{}", outcome.err);
}

#[test]
fn a_missing_backend_is_reported_with_advice() {
    let workspace = Workspace::new();
    let message = "no backend answers at DIR/control.sock: No such file or directory (os error 2); \
                    start it with `fairlane up POLICY`, or name its socket with --control PATH\n";
    for command in ["ctl show", "ctl set web weight=3", "ctl stop", "top --once"] {
        assert_refused(&workspace.run(&format!("{command} --control DIR/control.sock")), 1, message);
    }
}

#[test]
fn a_closed_standard_output_is_no_error() {
    let workspace = Workspace::with_policy();
    let _backend = workspace.up();
    for command in ["ctl show", "ctl show --json", "top --once --interval 100ms"] {
        let outcome = workspace.run_unread(&format!("{command} --control DIR/control.sock"));
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{command}");
    }
}
