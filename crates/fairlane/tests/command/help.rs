//! Completions, manual pages and help.

use crate::workspace::{Workspace, assert_refused};

#[test]
fn every_shell_has_completions() {
    let workspace = Workspace::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let outcome = workspace.run(&format!("completions {shell}"));
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
        assert!(outcome.out.contains("fairlane") && outcome.out.contains("capture"), "{shell}");
    }
    assert_eq!(workspace.run("completions tcsh").code, Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let workspace = Workspace::new();
    let outcome = workspace.run("man");
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    assert!(outcome.out.contains(".TH fairlane 1"), "{}", outcome.out);
    assert_eq!(workspace.run("man DIR").code, Some(0));
    let pages = workspace.names();
    for page in ["fairlane.1", "fairlane-up.1", "fairlane-check.1", "fairlane-ctl-set.1", "fairlane-top.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    let message = "cannot write manual pages to DIR/gone: No such file or directory (os error 2)\n";
    assert_refused(&workspace.run("man DIR/gone"), 1, message);
}

#[test]
fn help_and_long_output_accept_a_closed_standard_output() {
    let workspace = Workspace::with_policy();
    for command in ["--help", "completions zsh", "man", "check policy.toml", "check policy.toml --json"] {
        let outcome = workspace.run_unread(command);
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{command}");
    }
}

#[test]
fn wrong_usage_exits_with_status_2() {
    let workspace = Workspace::new();
    for command in ["", "upp policy.toml", "up", "ctl", "ctl set web"] {
        let outcome = workspace.run(command);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""), "{command}");
    }
}
