//! The rules, alerts and dashboard of `deploy/prometheus` with real Prometheus: it accepts them, every panel has data, and each
//! alert fires on its cause and clears. Times are shortened, for minutes are too long for a test.

use crate::guests::{Flood, guest, wait_for};
use crate::owed::Owed;
use crate::workspace::{Workspace, assert_done};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const POLICY: &str = r#"control = "DIR/control.sock"
metrics = "127.0.0.1:0"
[[link]]
name = "lan"
rate = "20Mbit/s"
uplink = { wire = "far" }
[[link]]
name = "far"
[[link]]
name = "free"
uplink = { wire = "void" }
[[link]]
name = "void"
[[tenant]]
name = "red"
[[vif]]
name = "web"
link = "lan"
tenant = "red"
weight = 300
socket = "DIR/web.sock"
early_ack = true
[[vif]]
name = "batch"
link = "lan"
socket = "DIR/batch.sock"
[[vif]]
name = "odd"
link = "lan"
socket = "DIR/odd.sock"
[[vif]]
name = "sleeper"
link = "free"
rx_queue = "64KiB"
rx_timeout = "10ms"
socket = "DIR/sleeper.sock"
[[vif]]
name = "owed"
link = "free"
early_ack = "always"
socket = "DIR/owed.sock"
[[vif]]
name = "loud"
link = "free"
socket = "DIR/loud.sock"
[[vif]]
name = "large"
link = "free"
socket = "DIR/large.sock"
"#;

fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus").join(name)
}

/// Prometheus on a port of its own, ended on drop.
struct Prometheus {
    process: Child,
    address: String,
}

impl Prometheus {
    fn start(workspace: &Workspace, target: &str) -> Prometheus {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        for name in ["rules.yml", "alerts.yml"] {
            workspace.write(name, &hurried(&fs::read_to_string(deployed(name)).unwrap()));
        }
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml, alerts.yml]\n\
             scrape_configs:\n- job_name: fairlane\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        workspace.write("prometheus.yml", &config);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", workspace.path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", workspace.path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=error"])
            .stdin(Stdio::null())
            .spawn()
            .expect("prometheus is installed: apt-get install prometheus");
        Prometheus { process, address }
    }

    /// The result of a query; none while the server starts.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let url = format!("http://{}/api/v1/query", self.address);
        let mut answer: Value = ureq::get(url).query("query", query).call().ok()?.body_mut().read_json().ok()?;
        match answer["data"]["result"].take() {
            Value::Array(result) => Some(result),
            _ => panic!("{query}: {answer}"),
        }
    }

    /// Whether an alert fires for this vif or link.
    fn fires(&self, alert: &str, name: &str) -> bool {
        let firing = self.query(&format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}")).unwrap_or_default();
        firing.iter().any(|series| series["metric"]["vif"] == name || series["metric"]["link"] == name)
    }

    fn wait_until_fires(&self, alert: &str, name: &str) {
        wait_for(&format!("{alert} of {name}"), || self.fires(alert, name));
    }

    fn wait_until_clear(&self, alert: &str, name: &str) {
        wait_for(&format!("the end of {alert} of {name}"), || !self.fires(alert, name));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Rules whose windows are seconds instead of minutes.
fn hurried(rules: &str) -> String {
    let line = |line: &str| match line.trim_start() {
        "for: 1m" | "for: 2m" | "for: 5m" => line.replace("for: ", "for: 1s # "),
        _ => line.replace("[1m]", "[3s]"),
    };
    rules.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn promtool_accepts_the_rules_and_every_file_is_in_the_mixin() {
    let rules = [deployed("rules.yml"), deployed("alerts.yml")];
    let checked =
        Command::new("promtool").args(["check", "rules"]).args(&rules).output().expect("promtool is installed");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let tested = Command::new("promtool").args(["test", "rules"]).arg(deployed("tests.yml")).output().unwrap();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
    let mixin = fs::read_to_string(deployed("mixin.libsonnet")).unwrap();
    for file in fs::read_dir(deployed("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        assert!(
            mixin.contains(&file) || ["mixin.libsonnet", "tests.yml"].contains(&file.as_str()),
            "{file} is not in the mixin"
        );
    }
}

#[test]
fn every_panel_has_data_and_each_alert_fires_and_clears() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", POLICY);
    let backend = workspace.up();
    let prometheus = Prometheus::start(&workspace, &backend.metrics.clone().unwrap());
    let web = Flood::start(&workspace.path("web.sock"), 1);
    let batch = Flood::start(&workspace.path("batch.sock"), 2);
    wait_for("all metrics", || {
        prometheus.query("tenant:fairlane_vif_bytes:rate1m").is_some_and(|found| !found.is_empty())
    });

    // A guest that is owed nearly all that may be retained for it.
    let mut owed = Owed::new(&workspace.path("owed.sock"), &workspace.path("loud.sock"));

    // A disabled vif: cleared by a guest that keeps the rules.
    let odd = guest(&workspace.path("odd.sock"));
    odd.memory.set_len(0).unwrap();
    odd.kick(1);
    prometheus.wait_until_fires("FairlaneVifDisabled", "odd");
    drop(odd);
    let odd = guest(&workspace.path("odd.sock"));
    prometheus.wait_until_clear("FairlaneVifDisabled", "odd");
    drop(odd);

    prometheus.wait_until_fires("FairlaneRetainedFull", "owed");
    owed.acknowledge();
    drop(owed);

    // Shares: nothing is wrong until a guarantee of another's takes what the weight would give.
    prometheus.wait_until_clear("FairlaneShareBelowDue", "web");
    assert_done(&workspace.ctl("set batch min_rate=18Mbit/s"), "");
    prometheus.wait_until_fires("FairlaneShareBelowDue", "web");
    // A guarantee that is kept, once the rate's window began after it; then the vif's own limit of frames makes it impossible.
    prometheus.wait_until_clear("FairlaneMinRateMissed", "batch");
    assert_done(&workspace.ctl("set batch max_frames=100"), "");
    prometheus.wait_until_fires("FairlaneMinRateMissed", "batch");
    assert_done(&workspace.ctl("set batch min_rate=none"), "");
    assert_done(&workspace.ctl("set batch max_frames=none"), "");
    prometheus.wait_until_clear("FairlaneMinRateMissed", "batch");
    prometheus.wait_until_clear("FairlaneShareBelowDue", "web");

    // A capture that reaches its limit.
    assert_done(&workspace.ctl("capture web DIR/web.pcap --limit 64KiB"), "");
    prometheus.wait_until_fires("FairlaneCaptureEnded", "web");
    let stopped = workspace.ctl("capture web --stop");
    assert!((stopped.out + &stopped.err).contains("limit"));
    prometheus.wait_until_clear("FairlaneCaptureEnded", "web");

    prometheus.wait_until_clear("FairlaneRetainedFull", "owed");

    // A guest that takes nothing, while others send to everybody without a limit: its queue overflows, and the worker has no time to
    // spare.
    let sleeper = guest(&workspace.path("sleeper.sock"));
    let loud = Flood::start(&workspace.path("loud.sock"), 3);
    let large = Flood::start_large(&workspace.path("large.sock"), 4);
    prometheus.wait_until_fires("FairlaneReceiveQueueOverflows", "sleeper");
    prometheus.wait_until_fires("FairlaneWorkerSaturated", "free");
    for panel in panels() {
        let query =
            panel.replace("$vif", ".*").replace("$link", ".*").replace("$instance", ".*").replace("[1m]", "[3s]");
        let found = prometheus.query(&query).unwrap();
        assert!(!found.is_empty(), "no data: {query}");
    }
    drop((loud, large));
    prometheus.wait_until_clear("FairlaneWorkerSaturated", "free");
    prometheus.wait_until_clear("FairlaneReceiveQueueOverflows", "sleeper");
    drop((sleeper, web, batch));
}

/// The queries of all panels of the dashboard.
fn panels() -> BTreeSet<String> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(deployed("dashboard.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}
