//! `fairlane fleet` as its users run it: a real NATS server, and three hosts, each in a network namespace, whose cables are pulled and
//! whose processes are killed.

#[path = "../daemon/mod.rs"]
mod daemon;
mod division;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
#[allow(dead_code)] // others use the rest
#[path = "../command/guests.rs"]
mod guests;
#[path = "../missing/mod.rs"]
mod missing;
#[path = "../early_ack/namespace.rs"]
mod namespace;
#[path = "../process/mod.rs"]
mod process;
mod reach;
mod stage;
mod ways;

use division::{
    a_guarantee_of_all_hosts_goes_where_the_demand_is, a_guarantee_that_is_taken_away_is_that_of_policies_again,
};
use fairlane_fleet::{Error, Pace, Wanted};
use guests::{Flood, wait_for};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nix::sys::signal::Signal;
use serde_json::Value;
use stage::{HOSTS, Stage};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// How long a line may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    stage::unshare_mounts();
    let tests = vec![
        Trial::ignorable_test("policies_of_three_hosts", policies_of_three_hosts),
        // A measurement: `cargo test --package fairlane --test fleet -- --ignored`.
        Trial::ignorable_test("a_change_reaches_a_thousand_agents", reach::a_change_reaches_a_thousand_agents)
            .with_ignored_flag(true),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// All on one stage, since it takes seconds to set up, and each step leaves the hosts as the next one finds them.
fn policies_of_three_hosts() -> Result<Completion, Failed> {
    let mut stage = match Stage::new() {
        Ok(stage) => stage,
        Err(error) => return missing::skip_or_fail(error),
    };
    ways::without_a_certificate_there_is_no_way_in(&stage);
    ways::credentials_are_a_way_in(&stage)?;
    hosts_give_the_store_what_they_have(&stage);
    a_change_goes_from_host_to_host(&stage);
    what_is_wrong_changes_nothing(&stage);
    let flood = [0, 1, 2].map(|host| Flood::start(&stage.hosts[host].socket("web"), 1));
    let tenant = a_guarantee_of_all_hosts_goes_where_the_demand_is(&stage);
    stage.cable("h3", false);
    a_broken_promise_takes_a_change_back(&stage);
    a_host_that_was_away_takes_the_newest(&stage);
    a_guarantee_that_is_taken_away_is_that_of_policies_again(&stage, tenant);
    drop(flood);
    a_change_survives_the_server(&mut stage);
    a_silent_host_takes_a_change_back(&stage);
    a_restarted_backend_has_the_last_policy(&mut stage);
    what_cannot_be_kept_is_not_in_force(&stage);
    a_host_that_is_forgotten_comes_back_with_its_own(&mut stage);
    Ok(Completion::Completed)
}

fn hosts_give_the_store_what_they_have(stage: &Stage) {
    stage.wait_until_in_force();
    assert_eq!(stage.run("show", &["h1"]), (Some(0), stage.hosts[0].kept()));
    let (status, said) = stage.run("show", &["h4"]);
    assert_eq!((status, said.contains("h4 has no policy in the store")), (Some(1), true), "{said}");
}

fn a_change_goes_from_host_to_host(stage: &Stage) {
    stage.write("heavy", |_| "weight = 200".to_owned());
    let (status, changes) = stage.run("diff", &["heavy", "h2"]);
    assert_eq!(status, Some(0));
    assert!(
        changes.starts_with("--- h2 revision ") && changes.contains("\n-weight = 100\n+weight = 200\n"),
        "{changes}"
    );

    let mut watch = stage.spawn("watch", &[]);
    let watched = lines(watch.0.stdout.take().unwrap());
    let next = || watched.recv_timeout(PATIENCE).expect("a line of `watch`");
    assert!(HOSTS.iter().all(|_| next().ends_with(" is in force")));

    let (status, said) = stage.run("apply", &["heavy", "--canary", "h2", "--settle", "0s"]);
    assert_eq!(status, Some(0), "{said}");
    let line = |host: &Value| format!("{}: revision {} is in force", host["host"].as_str().unwrap(), host["wanted"]);
    let expected: BTreeSet<String> = stage.shown().iter().map(line).collect();
    assert_eq!(HOSTS.map(|_| next()).into_iter().collect::<BTreeSet<_>>(), expected);
    let given: Vec<&str> = said.lines().filter_map(|line| line.split_once(" for ")).map(|(_, host)| host).collect();
    assert_eq!(given, ["h2", "h1", "h3"], "{said}");
    assert_eq!(stage.weights(), [200; 3]);
    assert!(stage.hosts.iter().all(|host| host.kept().contains("weight = 200")));
    assert_eq!(stage.run("diff", &["heavy"]), (Some(0), String::new()));
    let (status, said) = stage.run("apply", &["heavy", "--settle", "0s"]);
    assert_eq!((status, said.contains("0 of 3 hosts get another policy")), (Some(0), true), "{said}");
}

fn what_is_wrong_changes_nothing(stage: &Stage) {
    // A mistake is found before any host sees it.
    stage.write("zero", |_| "weight = 0".to_owned());
    let (status, said) = stage.run("apply", &["zero"]);
    assert_eq!((status, said.as_str()), (Some(2), "zero/h1.toml:12: weight must be 1 to 10000, not 0\n"));

    // So do hosts, if it comes to the store in another way.
    let wrong: Vec<(&str, String)> =
        HOSTS.map(|host| (host, stage.policy(host, "weight = 250\nmin_rate = \"x\""))).into();
    let numbers = stage.with_store(|fleet| async move {
        let mut numbers = Vec::new();
        for (host, text) in wrong {
            let former = fleet.policy(host).await.unwrap().unwrap();
            numbers.push(fleet.put(host, &text, former.number).await.unwrap());
        }
        numbers
    });
    let refuses = |host: &Value, number: u64| {
        let refused = &host["state"]["refused"];
        let reason = refused["reason"].as_str().unwrap_or_default();
        refused["revision"] == number && reason.contains("/policy.toml:13: min_rate must be a number and a unit")
    };
    wait_for("all hosts to refuse", || stage.shown().iter().zip(&numbers).all(|(host, number)| refuses(host, *number)));
    assert!(stage.run("show", &[]).1.contains("refuses it"));
    assert_eq!(stage.weights(), [200; 3]);
    assert!(stage.hosts.iter().all(|host| host.kept().contains("weight = 200")));

    // What only one backend can refuse: a control socket does not move while it runs.
    stage.write("mixed", |_| "weight = 300".to_owned());
    let moved = stage.policy("h3", "weight = 300").replace("control.sock", "moved.sock");
    std::fs::write(stage.path("mixed/h3.toml"), moved).unwrap();
    let (status, said) = stage.run("apply", &["mixed", "--settle", "0s"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("h3 refuses its policy: ") && said.contains("control"), "{said}");
    // Not what the store had last, which they refused, but what was in force.
    assert!(said.ends_with("; all hosts have their former policies\n"), "{said}");
    assert_eq!(stage.weights(), [200; 3]);
    assert!(stage.hosts.iter().all(|host| host.kept().contains("weight = 200")));
    stage.wait_until_in_force();
}

fn a_broken_promise_takes_a_change_back(stage: &Stage) {
    stage.write("promise", |_| "weight = 200\nmin_rate = \"5Mbit/s\"".to_owned());
    stage.write("slow", |_| "weight = 200\nmin_rate = \"5Mbit/s\"\nmax_frames = 100".to_owned());
    let (status, said) = stage.run("apply", &["promise", "h2", "--settle", "3s"]);
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = stage.run("apply", &["slow", "h1", "h2", "--canary", "h2", "--settle", "30s"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("h2: vif web sends 1.") && said.contains("less than its min_rate of 5.0Mbit/s"), "{said}");
    assert!(said.ends_with("; all hosts have their former policies\n"), "{said}");
    assert_eq!(stage.hosts[1].vif().max_frames, None);
}

fn a_host_that_was_away_takes_the_newest(stage: &Stage) {
    let away = || stage.shown().iter().find(|host| host["host"] == "h3").map(|host| host["away"] == true);
    wait_for("h3 to be away", || away() == Some(true));
    stage.write("later", |_| "weight = 400".to_owned());
    let (status, said) = stage.run("apply", &["later", "--settle", "0s"]);
    assert_eq!((status, said.contains("for h3, which is away and will follow")), (Some(0), true), "{said}");
    // It goes on with what it has.
    assert_eq!(stage.weights(), [400, 400, 200]);
    wait_for("the tenant's part of a host that is away", || stage.guaranteed() == [0, 12, 6]);
    let before = stage.hosts[2].vif().port.sent_frames;
    wait_for("frames of a host that is away", || stage.hosts[2].vif().port.sent_frames > before);

    let texts: Vec<String> =
        (1..=100).map(|number| stage.policy("h3", &format!("weight = {}", 400 + number))).collect();
    stage.with_store(|fleet| async move {
        let mut number = fleet.policy("h3").await.unwrap().unwrap().number;
        for text in texts {
            number = fleet.put("h3", &text, number).await.unwrap();
        }
    });
    let count = |said: &str| said.matches("is in force").count();
    let before = count(&stage.hosts[2].said());
    stage.cable("h3", true);
    stage.wait_until_in_force();
    assert_eq!(stage.weights(), [400, 400, 500]);
    wait_for("the hosts to divide", || stage.guaranteed() == [0, 6, 6]);
    assert_eq!(count(&stage.hosts[2].said()), before + 1, "{}", stage.hosts[2].said());
}

fn a_change_survives_the_server(stage: &mut Stage) {
    stage.write("survivor", |_| "weight = 600".to_owned());
    let mut change = stage.spawn("apply", &["survivor", "--settle", "1s"]);
    let mut said = BufReader::new(change.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.ends_with(" for h1")));
    stage.kill_server();
    sleep(Duration::from_secs(1));
    assert_ne!(stage.weights(), [600; 3]);
    stage.start_server().unwrap();
    let rest: Vec<String> = said.collect();
    assert!(change.0.wait().unwrap().success(), "{rest:?}");
    assert_eq!(stage.weights(), [600; 3]);
    stage.wait_until_in_force();
}

fn a_silent_host_takes_a_change_back(stage: &Stage) {
    stage.hosts[2].agent.signal(Signal::SIGSTOP);
    let wanted = [Wanted { host: "h3".to_owned(), text: stage.policy("h3", "weight = 700") }];
    let pace = Pace { settle: Duration::ZERO, patience: Duration::from_secs(1) };
    let said =
        stage.with_store(move |fleet| async move { fairlane_fleet::apply(&fleet, &wanted, pace, &mut |_| {}).await });
    stage.hosts[2].agent.signal(Signal::SIGCONT);
    let Err(Error::WentBack { why, back }) = said else { panic!("{said:?}") };
    assert_eq!(why, "h3 does not say that it has its policy");
    assert_eq!(back, "the others have their former policies, but: h3 does not say so");
    stage.wait_until_in_force();
    assert_eq!(stage.weights(), [600; 3]);
}

fn a_restarted_backend_has_the_last_policy(stage: &mut Stage) {
    stage.hosts[0].restart();
    assert_eq!(stage.weights(), [600; 3]);
}

/// A host whose disk is read-only has its former policy, in force as well as in its file, so that a restart changes nothing.
fn what_cannot_be_kept_is_not_in_force(stage: &Stage) {
    let before = stage.hosts[1].kept();
    stage.hosts[1].set_read_only(true);
    stage.write("unkept", |_| "weight = 800".to_owned());
    let (status, said) = stage.run("apply", &["unkept", "h2", "--settle", "0s"]);
    stage.hosts[1].set_read_only(false);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("h2 refuses its policy: cannot write ") && said.contains("Read-only file system"), "{said}");
    assert!(said.ends_with("; all hosts have their former policies\n"), "{said}");
    assert_eq!((stage.weights(), stage.hosts[1].kept()), (vec![600; 3], before));
    stage.wait_until_in_force();
}

fn a_host_that_is_forgotten_comes_back_with_its_own(stage: &mut Stage) {
    stage.hosts[2].agent.signal(Signal::SIGKILL);
    assert_eq!(stage.run("forget", &["h3"]), (Some(0), String::new()));
    let known: Vec<Value> = stage.shown().into_iter().map(|host| host["host"].clone()).collect();
    assert_eq!(known, ["h1", "h2"]);
    let (status, said) = stage.run("forget", &["h3"]);
    assert_eq!((status, said.contains("the store has no host h3")), (Some(1), true), "{said}");
    stage.follow_again(2);
    stage.wait_until_in_force();
    assert_eq!(stage.weights(), [600; 3]);
}

/// Lines as they come.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (line, received) = channel();
    spawn(move || BufReader::new(from).lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    received
}
