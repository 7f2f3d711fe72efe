//! Every kind of mistake, with the line and the message it is reported by.

use super::Experiment;

/// A valid file of 19 lines to make mistakes in.
const BASE: &str = r#"name = "e"
source = "s"
figure = "f"
machines = ["xen"]
[repeats]
count = 2
[topology]
guests = [{ cpus = [1] }]
host_cpus = [0]
[procedure]
kind = "ping"
from = "external"
guest = 1
count = 100
interval = 0.1
[[claim]]
text = "t"
metrics = ["mean"]
at_least = 1
"#;

fn problems(text: &str) -> Vec<String> {
    Experiment::parse("e", text).map_or_else(|found| found.iter().map(ToString::to_string).collect(), |_| Vec::new())
}

/// Checks the problems of the valid file with one text replaced by another.
fn with(old: &str, new: &str, expected: &[&str]) {
    assert!(BASE.contains(old), "{old}");
    let found = problems(&BASE.replacen(old, new, 1));
    assert_eq!(found.len(), expected.len(), "{new}: {found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{new}: {found}\nshould be {expected}");
    }
}

#[test]
fn the_base_is_valid() {
    assert_eq!(problems(BASE), [""; 0]);
}

#[test]
fn invalid_toml() {
    with("\"e\"", "\"e", &["e:1: invalid basic string"]);
    with("count = 2", "count = 2\ncount = 3", &["e:7: duplicate key"]);
}

#[test]
fn unknown_keys() {
    with("source", "sauce", &["e:1: source is missing", "e:2: no key is named `sauce`, did you mean `source`?"]);
    with("guest = 1", "guset = 1", &["e:13: procedure: unknown field `guset`, expected one of `from`, `guest`"]);
    with("host_cpus = [0]", "host_cpu = [0]", &["e:9: topology: unknown field `host_cpu`"]);
    with("count = 2", "times = 2", &["e:6: repeats: unknown field `times`, expected one of `count`"]);
    with("at_least", "least", &["e:19: claim: unknown field `least`"]);
    with(
        "[repeats]",
        "[[case]]\nnme = \"a\"\n[repeats]",
        &["e:5: name is missing", "e:6: no key is named `nme`, did you mean `name`?"],
    );
}

#[test]
fn values_of_the_wrong_type() {
    with("\"xen\"", "\"zen\"", &["e:4: machines: unknown variant `zen`, expected one of `native`"]);
    with("[\"xen\"]", "[]", &["e:4: machines must name one or more"]);
    with("\"ping\"", "\"pong\"", &["e:11: no procedure is named `pong`, did you mean `ping`?"]);
    with("kind = \"ping\"\n", "", &["e:10: kind is missing"]);
    with(
        "\"external\"",
        "\"outside\"",
        &["e:12: procedure: a node is \"external\", \"host\" or the number of a guest"],
    );
    with("[repeats]", "backends = []\n[repeats]", &["e:5: backends must name one or more, such as [\"fairlane\"]"]);
    with(
        "[repeats]",
        "backends = [\"vhost\"]\n[repeats]",
        &["e:5: backends: unknown variant `vhost`, expected one of `kernel`"],
    );
    with("count = 2", "count = \"two\"", &["e:6: repeats: invalid type: string \"two\""]);
    with(
        "[topology]",
        "[[topology]]",
        &["e:7: topology must be a table, not an array", "e:7: topology: missing field `guests`"],
    );
    with("[[claim]]", "[claim]", &["e:16: a claim is written [[claim]], with two brackets on each side"]);
}

#[test]
fn impossible_topologies() {
    with("guest = 1", "guest = 2", &["e:13: there is no guest 2: the topology has guest 1 only"]);
    with("from = \"external\"", "from = 7", &["e:12: there is no guest 7: the topology has guest 1 only"]);
    with("[1] }", "[9] }", &["e:8: guest 1 is on CPU 9, which does not exist: CPUs are 0 to 7"]);
    with("cpus = [1]", "cpus = []", &["e:8: guest 1 has no CPU: a list such as [0] is needed"]);
    with("[0]", "[8]", &["e:9: the host is on CPU 8, which does not exist: CPUs are 0 to 7"]);
    with("[1] }", "[1], rate = -1 }", &["e:8: rate must be at least 1e4 bits per second, such as 100e6, not -1"]);
    with("[1] }", "[1], min_rate = 5 }", &["e:8: min_rate must be at least 1e4 bits per second, such as 100e6, not 5"]);
    with("[1] }", "[1], weight = 0 }", &["e:8: weight must be 1 to 65535, not 0"]);
    with("host_cpus", "slice_ms = 2000\nhost_cpus", &["e:9: slice_ms must be 1 to 1000, as Xen takes it, not 2000"]);
    with("{ cpus = [1] }", "{ cpus = [1] }, { cpus = [1] }", &[]);
    let plain = "{ cpus = [1] }, { cpus = [1] }]\njoin = \"plain\"\n#";
    with(
        "{ cpus = [1] }]",
        plain,
        &["e:9: join is plain, which carries one guest's card only, but there are 2 guests"],
    );
    with(
        "[repeats]",
        "[background]\nguests = [3]\nshare = 2\n[repeats]",
        &["e:6: there is no guest 3: the topology has guest 1 only", "e:7: share must be 0 to 1, such as 0.6, not 2"],
    );
    with(
        "[repeats]",
        "[background]\nwaits = [2]\n[repeats]",
        &["e:6: there is no guest 2: the topology has guest 1 only"],
    );
}

#[test]
fn impossible_repeats() {
    with("count = 2", "count = 0", &["e:6: count must be 1 or more, not 0"]);
    with("count = 2", "metric = \"men\"\nwithin = 0.1", &["e:6: no metric is named `men`, did you mean `mean`?"]);
    with(
        "count = 2",
        "metric = \"mean\"\nwithin = 2",
        &["e:7: within must be a part of the mean, such as 0.05, not 2"],
    );
    with("count = 2", "metric = \"mean\"", &["e:5: repeats are either count, or metric and within"]);
    with("count = 2", "metric = \"mean\"\nwithin = 0.1\nleast = 2", &["e:8: least must be 3 to most (30), not 2"]);
}

#[test]
fn claims_that_cannot_be_judged() {
    with("[\"mean\"]", "[\"men\"]", &["e:18: no metric is named `men`, did you mean `mean`?"]);
    with("at_least = 1", "relative_to = \"x\"\nat_least = 1", &["e:19: no metric is named `x`"]);
    with("at_least = 1", "", &["e:17: a claim needs at_least, at_most or both"]);
    with("at_least = 1", "at_least = 1\nat_most = 0", &["e:19: at_least must not be above at_most (0), not 1"]);
    with("at_least = 1", "at_least = inf", &["e:19: at_least must be a finite number"]);
    with("[\"mean\"]", "[]", &["e:18: metrics must name one or more of mean, "]);
}

#[test]
fn faults_of_replaced_keys_are_reported_on_the_lines_of_their_case() {
    let case = "[[case]]\nname = \"a\"\nprocedure = { guest = 4 }\n[[case]]\nname = \"a\"\n[repeats]";
    with(
        "[repeats]",
        case,
        &[
            "e:7: there is no guest 4: the topology has guest 1 only",
            "e:9: an earlier case is named `a`: names must differ",
            "e:23: no metric is named `mean`",
        ],
    );
}

#[test]
fn impossible_weight_steps() {
    let steps =
        |keys: &str| format!("kind = \"weight-steps\"\nguests = [1, 1]\n{keys}\n[[case]]\nname = \"a\"\n[ignored]");
    let with_steps = |keys: &str, expected: &str| {
        let (head, tail) = BASE.split_once("kind = \"ping\"").unwrap();
        let found = problems(&format!("{head}{}{}", steps(keys), tail.split_once("[[claim]]").unwrap().0));
        assert!(found.iter().any(|problem| problem.contains(expected)), "{keys}: {found:#?}");
    };
    with_steps("from = [1, 2]\nto = [2]\nsteps = 3", "to must have a weight for each guest, 2, not 1");
    with_steps("from = [1, 0]\nto = [2, 1]\nsteps = 3", "a weight must be 1 to 10000, not 0");
    with_steps("from = [1, 2]\nto = [2, 1]\nsteps = 1", "steps must be 2 to 100, not 1");
    with_steps("from = [1, 2]\nto = [2, 1]\nsteps = 3\nstep = 0.1", "step must be 0.5 to 60, not 0.1");
}

#[test]
fn impossible_paths() {
    let with_path = |keys: &str, expected: &str| {
        let (head, tail) = BASE.split_once("kind = \"ping\"").unwrap();
        let claim = tail.split_once("[[claim]]").unwrap().1;
        let path = format!("kind = \"path-length\"\ndirection = \"receive\"\nseconds = 1.0\n{keys}\n[[claim]]{claim}");
        let found = problems(&format!("{}{path}", head.replace("host_cpus", "count = true\nhost_cpus")));
        assert!(found.iter().any(|problem| problem.contains(expected)), "{keys}: {found:#?}");
    };
    with_path("at = 1\nwith = 1", "with must be \"external\" or, if at is a guest, another guest");
    with_path("at = \"host\"\nwith = 1", "with must be \"external\" or, if at is a guest, another guest");
    with_path("at = 1\nwith = 2", "there is no guest 2");
    with_path("at = 1\npayload = 1473", "payload must be 8 to 1472, not 1473");
}
