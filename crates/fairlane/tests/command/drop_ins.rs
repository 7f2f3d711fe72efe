//! Vifs, tenants and links that come and go, what is kept of them, and drop-in files.

use crate::workspace::{POLICY, Workspace, assert_done, assert_refused};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::unistd::getegid;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn vifs(workspace: &Workspace) -> Vec<(String, u64, bool)> {
    let shown: serde_json::Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
    let vif = |vif: &serde_json::Value| {
        (vif["name"].as_str().unwrap().to_owned(), vif["weight"].as_u64().unwrap(), vif["added"].as_bool().unwrap())
    };
    shown["vifs"].as_array().unwrap().iter().map(vif).collect()
}

fn vif(name: &str, weight: u64, added: bool) -> (String, u64, bool) {
    (name.to_owned(), weight, added)
}

#[test]
fn what_was_added_survives_a_reload_and_once_saved_a_restart() {
    let workspace = Workspace::with_policy();
    workspace.write_drop_in("mail.toml", "[[vif]]\nname = \"mail\"\nlink = \"far\"\nsocket = \"DIR/mail.sock\"\n");
    let mut backend = workspace.up();
    assert_done(&workspace.ctl("add tenant red min_rate=10Mbit/s"), "");
    assert_done(&workspace.ctl("add link dmz rate=1Gbit/s"), "");
    assert_done(
        &workspace.ctl("add vif db link=near tenant=red socket=DIR/db.sock addresses=10.0.0.1,fd00::1 mode=0660"),
        "",
    );
    assert_done(&workspace.ctl("add vif db link=near tenant=red socket=DIR/db.sock weight=7 --replace"), "");
    assert_done(&workspace.ctl("add vif log link=dmz socket=DIR/log.sock"), "");
    assert_refused(&workspace.ctl("add vif db socket=DIR/x.sock link=near"), 1, "name `db` is taken by another vif\n");
    assert_refused(&workspace.ctl("remove tenant red"), 1, "tenant `red` still has vifs (db): remove them first\n");
    assert_refused(&workspace.ctl("remove vif dc"), 1, "no vif is named `dc`, did you mean `db`?\n");
    let tap = "link `wan`: this backend gave up what it takes to open a tap or a card when it started: write the link to \
               a file, and restart it\n";
    assert_refused(&workspace.ctl("add link wan uplink.tap=fl-none"), 1, tap);

    // A reload undoes settings, and nothing that was added.
    assert_done(&workspace.ctl("set web weight=8"), "");
    assert_done(&workspace.ctl("reload DIR/policy.toml"), "1 change\n");
    let all = [vif("web", 30, false), vif("mail", 100, false), vif("db", 7, true), vif("log", 100, true)];
    assert_eq!(vifs(&workspace), all);
    let narrow = POLICY.replace("100Mbit/s", "25Mbit/s");
    workspace.write("policy.toml", &narrow);
    let sum = "tenant `red`, added while this backend ran, does not fit to the files: the min_rates on link `near` add \
               up to 30Mbit/s, above its rate 25Mbit/s; remove it first\n";
    let refused = workspace.ctl("reload DIR/policy.toml");
    assert!(
        refused.code == Some(1) && (refused.err == sum || refused.err == sum.replace("tenant `red`", "vif `db`")),
        "{refused:?}"
    );
    workspace.write("policy.toml", POLICY);

    assert_done(&workspace.ctl("set web weight=9"), "");
    assert_done(&workspace.ctl("remove vif mail"), "");
    assert_done(&workspace.ctl("save"), "DIR/policy.d/saved.toml written\n");
    let entries = std::fs::read_dir(workspace.path("policy.d")).unwrap().count();
    assert_eq!(entries, 2, "only files that stay");
    let kept = [vif("db", 7, true), vif("log", 100, true), vif("web", 9, false)];
    let sorted = |mut vifs: Vec<(String, u64, bool)>| {
        vifs.sort();
        vifs
    };
    backend.signal(Signal::SIGHUP);
    backend.read_log_until("policy.toml reloaded: ");
    assert_eq!(sorted(vifs(&workspace)), kept);
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.wait(), Some(0));

    let _backend = workspace.up();
    assert_eq!(sorted(vifs(&workspace)), kept);
    assert_done(&workspace.ctl("remove vif log"), "");
    assert_done(&workspace.ctl("remove link dmz"), "");
    assert_done(&workspace.ctl("remove vif db"), "");
    assert_done(&workspace.ctl("remove tenant red"), "");
    assert_done(&workspace.ctl("set web weight=30"), "");
    assert_done(&workspace.ctl("save"), "DIR/policy.d/saved.toml written\n");
    let text = std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap();
    let left: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(left, ["[remove]", "vif = [\"mail\"]"]);
}

#[test]
fn a_wrong_drop_in_is_named_and_costs_nothing_else() {
    let workspace = Workspace::with_policy();
    let mail = "[[vif]]\nname = \"mail\"\nlink = \"near\"\nsocket = \"DIR/mail.sock\"\n";
    workspace.write_drop_in("mail.toml", mail);
    workspace.write_drop_in("wrong.toml", "[[vif]]\nname = \"wrong\"\n");
    workspace.write_drop_in("notes.txt", "no policy");
    let (socket, link) = ("policy.d/wrong.toml:1: socket is missing", "policy.d/wrong.toml:1: link is missing");
    let said = format!("{socket}\n{link}, the links are near, far\n");
    assert_refused(&workspace.run("check policy.toml"), 2, &said);
    // A socket that cannot be made costs its vif alone.
    let homeless = mail.replace("mail", "homeless").replace("DIR/", "DIR/nowhere/");
    workspace.write_drop_in("homeless.toml", &homeless);
    let mut backend = workspace.up();
    for sentence in [socket, "these drop-in files are not loaded; the rest is served", "there is no directory"] {
        assert!(backend.startup_log.contains(sentence), "{}", backend.startup_log);
    }
    assert_eq!(vifs(&workspace), [vif("web", 30, false), vif("mail", 100, false)]);
    std::fs::remove_file(workspace.path("policy.d/homeless.toml")).unwrap();

    // Its former state stays in force; what else changed is loaded.
    workspace.write_drop_in("mail.toml", &mail.replace("near", "nera"));
    workspace.write_drop_in("wrong.toml", &mail.replace("mail", "late"));
    let refused = workspace.ctl("reload DIR/policy.toml");
    let why = "DIR/policy.d/mail.toml:3: no link is named `nera`, did you mean `near`?\n\
               these files keep their former state, the rest is loaded: changes: 1\n";
    assert_refused(&refused, 1, why);
    assert_eq!(vifs(&workspace).len(), 3);
    backend.signal(Signal::SIGHUP);
    let log = backend.read_log_until("policy.toml reloaded: 0 changes");
    assert!(log.contains("policy.d/mail.toml:3: no link is named `nera`"), "{log}");
    std::fs::remove_file(workspace.path("policy.d/mail.toml")).unwrap();
    assert_done(&workspace.ctl("reload DIR/policy.toml"), "1 change\n");
    assert_eq!(vifs(&workspace), [vif("web", 30, false), vif("late", 100, false)]);
}

#[test]
fn a_save_loses_nothing_that_is_not_served() {
    let workspace = Workspace::with_policy();
    let away = |name: &str| format!("[[vif]]\nname = \"{name}\"\nlink = \"near\"\nsocket = \"DIR/away/{name}.sock\"\n");
    workspace.write_drop_in("home.toml", &away("home"));
    workspace.write_drop_in("saved.toml", &away("kept"));
    let backend = workspace.up();
    assert_eq!(vifs(&workspace), [vif("web", 30, false)]);
    assert_done(&workspace.ctl("set web weight=7"), "");
    assert_done(&workspace.ctl("save"), "DIR/policy.d/saved.toml written\n");
    drop(backend);
    std::fs::create_dir(workspace.path("away")).unwrap();
    let backend = workspace.up();
    assert_eq!(vifs(&workspace), [vif("home", 100, false), vif("web", 7, false), vif("kept", 100, true)]);
    drop(backend);

    // Until it is removed.
    std::fs::remove_dir_all(workspace.path("away")).unwrap();
    let saved = std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap();
    let backend = workspace.up();
    let shown: serde_json::Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
    let left_out = |name: &str, added: bool| serde_json::json!({ "name": name, "added": added });
    assert_eq!(shown["left_out"], serde_json::json!([left_out("home", false), left_out("kept", true)]));
    let shown = workspace.ctl("show").out;
    assert!(shown.ends_with("\nkept is not served: it could not be opened, and the log says why\n"), "{shown}");
    assert_done(&workspace.ctl("remove vif kept"), "");
    assert_eq!(workspace.ctl("remove vif kept").code, Some(1));
    assert_done(&workspace.ctl("save"), "DIR/policy.d/saved.toml written\n");
    let without = std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap();
    assert!(saved.contains("\"kept\"") && !without.contains("kept") && !without.contains("home"), "{without}");
    drop(backend);

    // What was saved would not fit beside the vif.
    workspace.write_drop_in("home.toml", &away("home").replace("\"home\"", "\"home\"\nmin_rate = \"9Mbit/s\""));
    let before = std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap();
    let backend = workspace.up();
    assert_done(&workspace.ctl("set web min_rate=95Mbit/s"), "");
    let why = "vif `home` of a file beside DIR/policy.d/saved.toml is not served, and does not fit to what was changed since: the \
               min_rates on link `near` add up to 104Mbit/s, above its rate 100Mbit/s; mend or remove it in its file, and load the \
               policy again (`fairlane ctl reload`) before you save\n";
    assert_refused(&workspace.ctl("save"), 1, why);
    drop(backend);

    // Nor does it replace what it could not understand.
    let wrong = format!("{before}\nwieght = 3\n");
    workspace.write("policy.d/saved.toml", &wrong);
    std::fs::create_dir(workspace.path("away")).unwrap();
    let _backend = workspace.up();
    assert_done(&workspace.ctl("set web weight=8"), "");
    let why = "DIR/policy.d/saved.toml has a mistake, so what it says is not in force, and a save would lose it: mend it or move it \
               away, and load the policy again (`fairlane ctl reload`) before you save\n";
    assert_refused(&workspace.ctl("save"), 1, why);
    assert_eq!(std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap(), wrong);
    std::fs::rename(workspace.path("policy.d/saved.toml"), workspace.path("moved.toml")).unwrap();
    assert_done(&workspace.ctl("reload DIR/policy.toml"), "1 change\n");
    assert_done(&workspace.ctl("save"), "DIR/policy.d/saved.toml written\n");
}

#[test]
fn a_vif_that_cannot_be_opened_keeps_no_other_from_being_served() {
    let workspace = Workspace::with_policy();
    let vif_of =
        |name: &str, at: &str| format!("[[vif]]\nname = \"{name}\"\nlink = \"near\"\nsocket = \"DIR/{at}.sock\"\n");
    workspace.write_drop_in("home.toml", &vif_of("home", "away/home"));
    let _backend = workspace.up();
    workspace.write_drop_in("mail.toml", &vif_of("mail", "mail"));
    let done = workspace.ctl("reload DIR/policy.toml");
    assert!(done.code == Some(1) && done.err.contains("away/home.sock"), "{:?}", done.err);
    assert_eq!(vifs(&workspace), [vif("web", 30, false), vif("mail", 100, false)]);
}

#[test]
fn a_drop_in_that_cannot_be_read_keeps_its_former_state() {
    let workspace = Workspace::with_policy();
    workspace.write_drop_in("mail.toml", "[[vif]]\nname = \"mail\"\nlink = \"near\"\nsocket = \"DIR/mail.sock\"\n");
    let mut backend = workspace.up();
    // What nobody can read as a file, not even root.
    std::fs::remove_file(workspace.path("policy.d/mail.toml")).unwrap();
    std::fs::create_dir(workspace.path("policy.d/mail.toml")).unwrap();
    let why = "DIR/policy.d/mail.toml:1: cannot be read: Is a directory (os error 21)\n\
               these files keep their former state, the rest is loaded: changes: 0\n";
    assert_refused(&workspace.ctl("reload DIR/policy.toml"), 1, why);
    backend.signal(Signal::SIGHUP);
    let log = backend.read_log_until("policy.toml reloaded: 0 changes");
    assert!(log.contains("policy.d/mail.toml:1: cannot be read: "), "{log}");
    assert_eq!(vifs(&workspace), [vif("web", 30, false), vif("mail", 100, false)]);
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for umask in ["umask 0", "umask 077"] {
        let workspace = Workspace::new();
        let observe = "observe = { socket = \"DIR/look.sock\", mode = \"0666\" }\n";
        workspace.write("policy.toml", &format!("{observe}{POLICY}mode = \"0660\"\n"));
        let _backend = workspace.up_after(umask);
        let fairlane = env!("CARGO_BIN_EXE_fairlane");
        for arguments in ["init made.toml", "ctl --control control.sock save"] {
            let done = workspace.run_program("sh", &["-c", &format!("{umask}; exec {fairlane} {arguments}")]);
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{arguments}");
        }
        for (name, mode) in [
            ("control.sock", 0o600),
            ("look.sock", 0o666),
            ("web.sock", 0o660),
            ("made.toml", 0o644),
            ("policy.d", 0o755),
            ("policy.d/saved.toml", 0o644),
        ] {
            let found = workspace.path(name).metadata().unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{name} after {umask}");
        }
    }
}

#[test]
fn a_full_disk_leaves_the_saved_file_whole() {
    let test = std::thread::spawn(|| {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
            let _ = writeln!(io::stderr(), "SKIPPED: this test needs root, to mount a small disk: {error}");
            return;
        }
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_PRIVATE | MsFlags::MS_REC, nothing).unwrap();
        let workspace = Workspace::with_policy();
        std::fs::create_dir(workspace.path("policy.d")).unwrap();
        let size = Some("size=16k");
        mount(Some("tmpfs"), &workspace.path("policy.d"), Some("tmpfs"), MsFlags::empty(), size).unwrap();
        let _backend = workspace.up();
        assert_done(&workspace.ctl("set web weight=7"), "");
        assert_done(&workspace.ctl("save"), "DIR/policy.d/saved.toml written\n");
        let before = std::fs::read(workspace.path("policy.d/saved.toml")).unwrap();
        let _ = std::fs::write(workspace.path("policy.d/filler"), [7; 16 << 10]);
        assert_done(&workspace.ctl("set web weight=8"), "");
        let refused = workspace.ctl("save");
        assert_eq!(refused.code, Some(1));
        let sentence =
            "cannot write DIR/policy.d/saved.toml; what was there before is unchanged: No space left on device";
        assert!(refused.err.starts_with(sentence), "{refused:?}");
        assert_eq!(std::fs::read(workspace.path("policy.d/saved.toml")).unwrap(), before);
        assert_eq!(std::fs::read_dir(workspace.path("policy.d")).unwrap().count(), 2);
    });
    test.join().unwrap();
}

#[test]
fn observers_look_and_the_log_says_who_did_what() {
    let workspace = Workspace::new();
    let group = getegid();
    workspace.write(
        "policy.toml",
        &format!("observe = {{ socket = \"DIR/look.sock\", group = {group}, mode = \"0640\" }}\n{POLICY}"),
    );
    let mut backend = workspace.up();
    let made = workspace.path("look.sock").metadata().unwrap();
    assert_eq!((made.permissions().mode() & 0o777, made.gid()), (0o640, group.as_raw()));
    let look = |arguments: &str| workspace.run(&format!("ctl --control DIR/look.sock {arguments}"));
    for arguments in ["show", "stats", "show flows"] {
        assert_eq!(look(arguments).out, workspace.ctl(arguments).out);
    }
    let read_only = "this control socket is read-only (show, flows, save): use the owner's\n";
    for arguments in [
        "set web weight=3",
        "remove vif web",
        "stop",
        "capture web DIR/web.pcap",
        "reload DIR/policy.toml",
        "flows export web DIR/f",
    ] {
        assert_refused(&look(arguments), 1, read_only);
    }
    assert_eq!(vifs(&workspace), [vif("web", 30, false)]);
    assert_done(&workspace.ctl("set web weight=4"), "");
    let log = backend.read_log_until("set web weight=4, by process ");
    assert!(log.contains("remove vif web, by process ") && log.contains("refused: this control socket"), "{log}");
    let user = nix::unistd::getuid();
    assert!(log.trim_end().ends_with(&format!(" of user {user}")), "{log}");
    workspace.write("policy.toml", POLICY);
    assert_refused(
        &workspace.ctl("reload DIR/policy.toml"),
        1,
        "observe cannot change while running, restart to change it\n",
    );
}
