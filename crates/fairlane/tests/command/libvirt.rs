//! The hook with a real libvirtd and an emulated guest.

use crate::workspace::{Workspace, assert_done};
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const POLICY: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
rate = "1Gbit/s"
"#;

const GUEST: &str = r#"<domain type='qemu'>
  <name>web</name><memory unit='MiB'>16</memory>
  <metadata><fairlane:vif xmlns:fairlane='urn:fairlane:1' name='web' weight='300'/></metadata>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices>
    <interface type='vhostuser'>
      <mac address='52:54:00:12:34:56'/>
      <source type='unix' path='DIR/web.sock' mode='client'><reconnect enabled='yes' timeout='1'/></source>
      <model type='virtio'/>
      <bandwidth><inbound average='1000' peak='5000' burst='1024'/><outbound average='128' burst='256'/></bandwidth>
    </interface>
  </devices>
</domain>
"#;

/// A libvirtd with directories of its own. At the end it and its guests are killed.
struct Libvirt(Child);

impl Libvirt {
    /// Starts it in a new namespace of this thread, with the hook.
    fn start(workspace: &Workspace) -> Libvirt {
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_PRIVATE | MsFlags::MS_REC, nothing).unwrap();
        for place in ["/etc/libvirt", "/run", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt"] {
            mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
        }
        let configuration = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nuser = \"root\"\ngroup = \"root\"\n\
                             cgroup_controllers = []\nnamespaces = []\n";
        std::fs::write("/etc/libvirt/qemu.conf", configuration).unwrap();
        std::fs::write("/etc/libvirt/libvirtd.conf", "auth_unix_rw = \"none\"\n").unwrap();
        let hook = include_str!("../../../../deploy/libvirt/qemu");
        let ours = format!("{} libvirt-hook --control DIR/control.sock", env!("CARGO_BIN_EXE_fairlane"));
        let hook = workspace.expand(&hook.replace("/usr/bin/fairlane libvirt-hook", &ours));
        std::fs::create_dir_all("/etc/libvirt/hooks/qemu.d").unwrap();
        std::fs::write("/etc/libvirt/hooks/qemu.d/fairlane", hook).unwrap();
        std::fs::set_permissions("/etc/libvirt/hooks/qemu.d/fairlane", Permissions::from_mode(0o755)).unwrap();
        let mut daemon = Command::new("libvirtd").stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !virsh(&["version"]).status.success() {
            assert!(daemon.try_wait().unwrap().is_none(), "libvirtd ended");
            std::thread::sleep(Duration::from_millis(50));
        }
        Libvirt(daemon)
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let guest = std::fs::read_to_string("/run/libvirt/qemu/web.pid").ok().and_then(|pid| pid.trim().parse().ok());
        // Usually it is gone by now.
        guest.map(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn virsh(arguments: &[&str]) -> Output {
    Command::new("virsh").args(["--connect", "qemu:///system"]).args(arguments).output().unwrap()
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn refused(output: &Output, sentence: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains(sentence), "{errors}");
}

fn vifs(workspace: &Workspace) -> Vec<Value> {
    let shown: Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
    shown["vifs"].as_array().unwrap().clone()
}

#[test]
fn a_stopped_guest_whose_card_is_not_served_is_saved_no_longer() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", POLICY);
    let away = |name: &str| format!("[[vif]]\nname = \"{name}\"\nlink = \"lan\"\nsocket = \"DIR/away/{name}.sock\"\n");
    workspace.write_drop_in("saved.toml", &(away("web") + &away("db")));
    workspace.write_drop_in("own.toml", &away("own"));
    let _backend = workspace.up();
    for guest in ["web", "own", "other"] {
        let xml = workspace.expand(&GUEST.replace("web.sock", &format!("{guest}.sock")));
        let hook = format!("libvirt-hook --control DIR/control.sock {guest} release end -");
        assert_done(&workspace.run_with_input(&hook, &xml), "");
    }
    let saved = std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap();
    assert!(saved.contains("\"db\"") && !saved.contains("web") && !saved.contains("own"), "{saved}");
    let shown: Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
    assert_eq!(
        shown["left_out"],
        serde_json::json!([{ "name": "own", "added": false }, { "name": "db", "added": true }])
    );
}

#[test]
fn a_guest_of_libvirt_has_its_card_and_its_bandwidth() {
    let test = std::thread::spawn(|| {
        let is_there = |program: &str| {
            Path::new("/usr/sbin").join(program).exists() || Path::new("/usr/bin").join(program).exists()
        };
        let missing = ["libvirtd", "virsh", "qemu-system-x86_64"].into_iter().find(|program| !is_there(program));
        let missing = missing.map(|program| format!("{program} is not installed"));
        let missing =
            missing.or_else(|| unshare(CloneFlags::CLONE_NEWNS).err().map(|error| format!("this needs root: {error}")));
        if let Some(missing) = missing {
            assert!(std::env::var_os("FAIRLANE_GUESTS").is_none_or(|value| value != "required"), "{missing}");
            let _ = writeln!(io::stderr(), "SKIPPED: {missing}");
            return;
        }
        let workspace = Workspace::new();
        workspace.write("policy.toml", POLICY);
        workspace.write("web.xml", GUEST);
        let mut backend = workspace.up();
        let libvirt = Libvirt::start(&workspace);
        let file = |name: &str| workspace.path(name).to_str().unwrap().to_owned();
        done(&virsh(&["define", &file("web.xml")]));

        // QEMU waits for its socket, so it is connected once it runs.
        done(&virsh(&["start", "web"]));
        let shown = vifs(&workspace);
        assert_eq!(shown.len(), 1, "{shown:?}");
        let is_right = |web: &Value| {
            assert_eq!((&web["name"], &web["weight"], &web["added"]), (&"web".into(), &300.into(), &true.into()));
            assert_eq!((&web["max_rate"], &web["burst"]), (&1_024_000.into(), &(256 << 10).into()));
            let receive = &web["receive"];
            assert_eq!((&receive["max_rate"], &receive["burst"]), (&8_000_000.into(), &(1 << 20).into()));
        };
        is_right(&shown[0]);

        // What libvirt lets through: it shows, and passes on no change.
        let card = "52:54:00:12:34:56";
        assert!(done(&virsh(&["domiftune", "web", card])).contains("outbound.average: 128"));
        for state in ["--live", "--config"] {
            let sentence = "setting bandwidth on interfaces of type 'vhostuser' is not implemented yet";
            refused(&virsh(&["domiftune", "web", card, state, "--outbound", "200"]), sentence);
        }

        // The guest outlives the backend, and is known to the next one.
        backend.signal(Signal::SIGTERM);
        assert_eq!(backend.wait(), Some(0));
        let _backend = workspace.up();
        is_right(&vifs(&workspace)[0]);

        // Twice, out of order, for others, and nonsense.
        let hook = |arguments: &str, xml: &str| {
            workspace
                .run_with_input(&format!("libvirt-hook --control DIR/control.sock {arguments}"), &workspace.expand(xml))
        };
        assert_done(&workspace.ctl("set web max_rate=5Mbit/s"), "");
        assert_done(&hook("web start begin -", GUEST), "");
        assert_eq!(vifs(&workspace)[0]["max_rate"], 5_000_000, "what runs keeps what was set");
        for operation in ["prepare begin -", "prepare begin -"] {
            assert_done(&hook(&format!("web {operation}"), GUEST), "");
        }
        is_right(&vifs(&workspace)[0]);
        assert_done(&hook("db release end -", &GUEST.replace("web.sock", "db.sock")), "");
        assert_done(&hook("ovs prepare begin -", &GUEST.replace("DIR/", "/run/openvswitch/")), "");
        for (arguments, xml, sentence) in [
            (
                "web prepare begin -",
                "<network/>",
                "the XML of guest web is not understood, and nothing is done: it is a <network>",
            ),
            ("web prepare begin -", "no XML <", "the XML of guest web is not understood"),
            ("web explode now -", GUEST, "libvirt's operation `explode` is not known, and nothing is done"),
        ] {
            let outcome = hook(arguments, xml);
            assert!(outcome.code == Some(0) && outcome.out.is_empty() && outcome.err.contains(sentence), "{outcome:?}");
        }
        assert_eq!(vifs(&workspace).len(), 1);

        done(&virsh(&["destroy", "web"]));
        assert_eq!(vifs(&workspace), Vec::<Value>::new());
        let saved = std::fs::read_to_string(workspace.path("policy.d/saved.toml")).unwrap();
        assert!(!saved.contains("web"), "{saved}");

        // A guest whose card cannot be saved runs all the same.
        mount(None::<&str>, &workspace.path("policy.d"), Some("tmpfs"), MsFlags::empty(), Some("size=4k")).unwrap();
        std::fs::write(workspace.path("policy.d/filler"), [7; 4 << 10]).unwrap();
        for (operation, expected, sentence) in [
            ("prepare begin", 1, "the guest is served until Fairlane ends, as its cards are not saved"),
            ("release end", 0, "the guest's cards are back when Fairlane starts again, as their end is not saved"),
        ] {
            let outcome = hook(&format!("web {operation} -"), GUEST);
            let sentence = format!("fairlane: {sentence}: cannot write");
            assert!(outcome.code == Some(0) && outcome.err.starts_with(&sentence), "{outcome:?}");
            assert!(outcome.err.contains("No space left on device"), "{outcome:?}");
            assert_eq!(vifs(&workspace).len(), expected);
        }
        umount(&workspace.path("policy.d")).unwrap();

        done(&virsh(&["undefine", "web"]));
        // A guest whose guarantee cannot be given does not start, and libvirt shows the reason.
        workspace.write("web.xml", &GUEST.replace("weight='300'", "min_rate='2Gbit/s' max_rate='none'"));
        done(&virsh(&["define", &file("web.xml")]));
        refused(
            &virsh(&["start", "web"]),
            "guest web: min_rate 2Gbit/s of vif `web` is above the rate 1Gbit/s of link `lan`",
        );
        let floor = GUEST.replace("<inbound ", "<inbound floor='100' ");
        workspace.write("floor.xml", &floor);
        refused(&virsh(&["define", &file("floor.xml")]), "floor attribute is not supported for this config");
        drop(libvirt);
    });
    test.join().unwrap();
}
