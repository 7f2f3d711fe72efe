mod claims;
mod runner;
mod wrong;

use super::{BUILT_IN, Experiment};
use crate::MachineKind;
use fairlane_report::About;
use proptest::prelude::*;

fn parse(name: &str, text: &str) -> Experiment {
    Experiment::parse(name, text).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    })
}

#[test]
fn built_in_experiments_are_valid() {
    for (name, text) in BUILT_IN {
        let experiment = parse(&format!("experiments/{name}.toml"), text);
        assert_eq!(experiment.name, name);
        assert!(!experiment.claims.is_empty(), "{name} claims nothing");
        assert!(experiment.seconds() < 1200.0, "{name} takes {} s", experiment.seconds());
    }
}

/// A claim about Fairlane that nobody measures could fail unnoticed.
#[test]
fn a_make_target_runs_every_experiment_with_claims_about_fairlane() {
    let makefile = include_str!("../../../../../Makefile");
    let words: Vec<&str> = makefile.split_whitespace().map(|word| word.trim_end_matches(';')).collect();
    for (name, text) in BUILT_IN {
        let claims = parse(name, text).claims.iter().any(|claim| claim.about == About::Fairlane);
        assert!(
            !claims || words.contains(&name),
            "{name} claims something about Fairlane: add it to ON_XEN or ON_UML in Makefile"
        );
    }
}

#[test]
fn a_shortened_experiment_is_short_and_still_valid() {
    for (name, text) in BUILT_IN {
        let mut experiment = parse(name, text);
        let full = experiment.seconds();
        experiment.shorten();
        assert!(experiment.seconds() <= full && experiment.repeats.most() <= 2, "{name}");
        for case in &experiment.cases {
            assert_eq!(case.procedure.faults(&case.topology), [], "{name}");
        }
    }
}

#[test]
fn scaling_scales_all_rates() {
    let (_, text) = BUILT_IN[0];
    let mut experiment = parse("e", text);
    experiment.scale(0.5);
    let topology = &experiment.cases[0].topology;
    assert_eq!((topology.link, topology.guests[1].rate), (Some(50e6), Some(12.5e6)));
}

#[test]
fn guests_are_placed_by_the_kind_of_machine() {
    let text = BUILT_IN[0].1.replace("[topology]", "[cpus]\nxen = [[2], [3, 4]]\n\n[topology]");
    let mut experiment = parse("e", &text);
    let places = |experiment: &Experiment| -> Vec<Vec<usize>> {
        experiment.cases[0].topology.guests.iter().map(|guest| guest.cpus.clone()).collect()
    };
    experiment.place(MachineKind::Kvm);
    assert_eq!(places(&experiment), [[1], [1]]);
    experiment.place(MachineKind::Xen);
    assert_eq!(places(&experiment), [vec![2], vec![3, 4]]);
    for (cpus, message) in [
        ("[[2], []]", "xen: guest 2 has no CPU"),
        ("[[2], [8]]", "xen: guest 2 is on CPU 8"),
        ("[[2]]", "xen places 1 guests, which no case has"),
    ] {
        let problems = Experiment::parse("e", &text.replace("[[2], [3, 4]]", cpus)).unwrap_err();
        assert!(problems.iter().any(|problem| problem.to_string().contains(message)), "{problems:?}");
    }
}

proptest! {
    /// Any text is either an experiment or has problems on existing lines; nothing panics.
    #[test]
    fn any_text_is_parsed_or_reported(text in ".{0,200}") {
        parses_or_reports(&text);
    }

    /// The same for valid files with a line removed, duplicated or replaced.
    #[test]
    fn damaged_files_are_parsed_or_reported(file in 0..BUILT_IN.len(), line: prop::sample::Index, other: prop::sample::Index, how in 0..3) {
        let (_, text) = BUILT_IN[file];
        let mut lines: Vec<&str> = text.lines().collect();
        let (line, other) = (line.index(lines.len()), lines[other.index(lines.len())]);
        match how {
            0 => drop(lines.remove(line)),
            1 => lines.insert(line, other),
            _ => lines[line] = other,
        }
        parses_or_reports(&lines.join("\n"));
    }

    /// The same for a replaced number; an experiment that is parsed can also be planned.
    #[test]
    fn extreme_numbers_are_parsed_or_reported(file in 0..BUILT_IN.len(), place: prop::sample::Index, number in prop_oneof![
        Just("0".to_owned()), Just("-1".to_owned()), Just("nan".to_owned()), Just("1e300".to_owned()),
        Just("99999999999999999999".to_owned()), any::<f64>().prop_map(|n| n.to_string()), (0u64..100).prop_map(|n| n.to_string()),
    ]) {
        let (_, text) = BUILT_IN[file];
        let starts: Vec<usize> = text.match_indices("= ").map(|(at, _)| at + 2).collect();
        let start = starts[place.index(starts.len())];
        let end = text[start..].find(|c: char| !(c.is_ascii_digit() || ".e_".contains(c))).unwrap_or(0) + start;
        if end > start {
            parses_or_reports(&format!("{}{number}{}", &text[..start], &text[end..]));
        }
    }
}

fn parses_or_reports(text: &str) {
    match Experiment::parse("e", text) {
        Ok(experiment) => {
            assert!(experiment.seconds().is_finite());
            for case in &experiment.cases {
                let at = |_| std::net::Ipv4Addr::LOCALHOST;
                case.procedure.plan(&case.topology, &at, 5001);
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let lines = text.lines().count().max(1);
            assert!(problems.iter().all(|problem| (1..=lines).contains(&problem.line)), "{problems:?}");
        }
    }
}
