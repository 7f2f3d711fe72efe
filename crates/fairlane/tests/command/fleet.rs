//! The agent of a fleet, before it has a store.

use crate::workspace::Workspace;

#[test]
fn the_hosts_name_is_known_where_the_services_sandbox_hides_files() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: namespaces need root");
        return;
    }
    let workspace = Workspace::with_policy();
    let follow = format!("{} fleet follow policy.toml --tls-ca none.pem", env!("CARGO_BIN_EXE_fairlane"));
    // As by ProcSubset=pid.
    let script = format!("hostname h1 && mount -t tmpfs none /proc/sys && {follow}");
    let outcome = workspace.run_program("unshare", &["--mount", "--uts", "sh", "-c", &script]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.err.contains("none.pem"), "the store comes next: {outcome:?}");
}
