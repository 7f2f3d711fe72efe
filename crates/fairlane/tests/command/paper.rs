//! Completions, manual pages, help.

use crate::place::{Place, assert_refused};

#[test]
fn every_shell_has_completions() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = place.run(&format!("completions {shell}"));
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        assert!(ran.out.contains("fairlane") && ran.out.contains("capture"), "{shell}");
    }
    assert_eq!(place.run("completions tcsh").code, Some(2));
}

#[test]
fn every_command_has_a_page() {
    let place = Place::new();
    let ran = place.run("man");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains(".TH fairlane 1"), "{}", ran.out);
    assert_eq!(place.run("man DIR").code, Some(0));
    let pages = place.names();
    for page in ["fairlane.1", "fairlane-up.1", "fairlane-check.1", "fairlane-ctl-set.1", "fairlane-top.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    let sentence = "cannot write manual pages to DIR/gone: No such file or directory (os error 2)\n";
    assert_refused(&place.run("man DIR/gone"), 1, sentence);
}

#[test]
fn help_and_long_output_bear_a_reader_that_left() {
    let place = Place::with_policy();
    for command in ["--help", "completions zsh", "man", "check policy.toml", "check policy.toml --json"] {
        let ran = place.run_unread(command);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{command}");
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let place = Place::new();
    for command in ["", "upp policy.toml", "up", "ctl", "ctl set web"] {
        let ran = place.run(command);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{command}");
    }
}
