//! Applies the kernel settings that findings name, saves the old values in a file, and restores them.

use super::finding::{Finding, Setting};
use super::pinned;
use super::snapshot::Snapshot;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The default file for the old values.
pub(super) const STATE: &str = "/var/lib/fairlane/doctor.json";
/// The version of that file's format.
const SCHEMA: u32 = 1;

/// A setting to change, and where an administrator has pinned it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// What to set.
    pub setting: Setting,
    /// `FILE:LINE`, if it is pinned.
    pub pinned: Option<String>,
}

/// The kernel's settings, and the file with the old values.
pub(super) struct Settings<'a> {
    /// The directory above `net/core/somaxconn`: /proc/sys.
    pub root: &'a Path,
    /// The file with the old values.
    pub state: &'a Path,
}

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedValues {
    schema: u32,
    settings: Vec<Changed>,
}

/// A setting that was changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    key: String,
    old: String,
    new: String,
}

/// The settings that the findings would change, each key once, from the finding that limits most.
pub(super) fn plan(findings: &[Finding], snapshot: &Snapshot) -> Vec<Step> {
    let mut seen = BTreeSet::new();
    let settings = findings.iter().flat_map(|finding| &finding.change).filter_map(|remedy| remedy.setting.clone());
    let first = settings.filter(|setting| seen.insert(setting.key.clone()));
    first.map(|setting| Step { pinned: pinned::find(snapshot, &setting.key), setting }).collect()
}

impl Settings<'_> {
    /// Changes settings, after saving each old value. Returns one line per change.
    ///
    /// # Errors
    /// A setting that cannot be read or written, a state file that cannot be read or written.
    pub(super) fn apply(&self, settings: &[Setting]) -> anyhow::Result<Vec<String>> {
        let mut saved = self.load()?;
        let mut done = Vec::new();
        for Setting { key, value } in settings {
            let old = self.get(key)?;
            if old == *value {
                continue;
            }
            // `undo` restores the value before the first change.
            match saved.settings.iter_mut().find(|changed| changed.key == *key) {
                Some(changed) if changed.new == old => changed.new.clone_from(value),
                Some(changed) => *changed = Changed { key: key.clone(), old: old.clone(), new: value.clone() },
                None => saved.settings.push(Changed { key: key.clone(), old: old.clone(), new: value.clone() }),
            }
            self.save(&saved)?;
            self.set(key, value)?;
            done.push(format!("{key} = {value} (was {old})"));
        }
        Ok(done)
    }

    /// Restores the values that [`Settings::apply`] changed, except those changed again since. Returns one line per setting.
    ///
    /// # Errors
    /// No file with old values, or an invalid one; a setting that cannot be written, which stays in the file.
    pub(super) fn undo(&self) -> anyhow::Result<Vec<String>> {
        let mut saved = self.load()?;
        if saved.settings.is_empty() {
            bail!("{} holds nothing to undo", self.state.display());
        }
        let mut done = Vec::new();
        while let Some(Changed { key, old, new }) = saved.settings.last() {
            let now = self.get(key)?;
            if now == *new {
                self.set(key, old)?;
                done.push(format!("{key} = {old} (was {new})"));
            } else {
                done.push(format!("{key} = {now}: changed since from {new}, left alone"));
            }
            saved.settings.pop();
            self.save(&saved)?;
        }
        Ok(done)
    }

    /// The path of a setting. Only network settings are allowed, whatever the file with the old values says.
    fn path(&self, key: &str) -> anyhow::Result<PathBuf> {
        let valid = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !key.starts_with("net.") || !valid {
            bail!("{key:?} is not a network setting (such as net.core.somaxconn)");
        }
        Ok(self.root.join(key.replace('.', "/")))
    }

    /// A setting's value, its numbers separated by single spaces.
    fn get(&self, key: &str) -> anyhow::Result<String> {
        let text = fs::read_to_string(self.path(key)?).with_context(|| format!("cannot read {key}"))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn set(&self, key: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.path(key)?, value).with_context(|| format!("cannot set {key} to {value}"))
    }

    fn load(&self) -> anyhow::Result<SavedValues> {
        let text = match fs::read_to_string(self.state) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(SavedValues { schema: SCHEMA, settings: Vec::new() });
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.state.display())),
        };
        let saved: SavedValues = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a file of old values of the doctor", self.state.display()))?;
        if saved.schema != SCHEMA {
            bail!("{} has version {}, but this program supports {SCHEMA}", self.state.display(), saved.schema);
        }
        Ok(saved)
    }

    /// Replaces the file atomically, or removes it if there are no settings.
    fn save(&self, saved: &SavedValues) -> anyhow::Result<()> {
        let write = || {
            if saved.settings.is_empty() {
                return fs::remove_file(self.state);
            }
            let directory = self.state.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::create_dir_all(directory)?;
            let file = tempfile::NamedTempFile::new_in(directory)?;
            serde_json::to_writer_pretty(&file, saved)?;
            file.as_file().sync_all()?;
            file.persist(self.state).map(drop).map_err(|error| error.error)
        };
        write().with_context(|| format!("cannot save old values in {}", self.state.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Confidence, Remedy};

    /// Runs a test on settings below a temporary directory.
    fn with_settings(test: impl FnOnce(&Settings, &dyn Fn() -> String)) {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("sys");
        fs::create_dir_all(root.join("net/core")).unwrap();
        fs::write(root.join("net/core/somaxconn"), "128\n").unwrap();
        let state = home.path().join("lib/doctor.json");
        let now = || fs::read_to_string(root.join("net/core/somaxconn")).unwrap();
        test(&Settings { root: &root, state: &state }, &now);
    }

    fn somaxconn(value: &str) -> Vec<Setting> {
        vec![Setting { key: "net.core.somaxconn".to_owned(), value: value.to_owned() }]
    }

    #[test]
    fn a_plan_has_each_setting_once_and_where_it_is_pinned() {
        let finding = |remedies| Finding {
            cause: "accept-queue",
            confidence: Confidence::Certain,
            limits: 1.0,
            seen: String::new(),
            why: String::new(),
            change: remedies,
        };
        let findings = [
            finding(vec![Remedy::set("net.core.somaxconn", 4096), Remedy::by_hand("restart the server")]),
            finding(vec![Remedy::set("net.core.somaxconn", 9000), Remedy::set("net.ipv4.tcp_tw_reuse", 1)]),
        ];
        let mut snapshot = Snapshot::default();
        snapshot.put("/etc/sysctl.conf", "net.ipv4.tcp_tw_reuse=0\n".to_owned());
        let plan = plan(&findings, &snapshot);
        let plan: Vec<_> =
            plan.iter().map(|step| (&*step.setting.key, &*step.setting.value, step.pinned.as_deref())).collect();
        let expected =
            [("net.core.somaxconn", "4096", None), ("net.ipv4.tcp_tw_reuse", "1", Some("/etc/sysctl.conf:1"))];
        assert_eq!(plan, expected);
    }

    #[test]
    fn undo_restores_the_value_before_the_first_change() {
        with_settings(|settings, now| {
            assert_eq!(settings.apply(&somaxconn("4096")).unwrap(), ["net.core.somaxconn = 4096 (was 128)"]);
            assert_eq!(settings.apply(&somaxconn("4096")).unwrap(), [""; 0]);
            settings.apply(&somaxconn("9000")).unwrap();
            assert_eq!(now(), "9000");
            assert_eq!(settings.undo().unwrap(), ["net.core.somaxconn = 128 (was 9000)"]);
            assert_eq!((now().as_str(), settings.state.exists()), ("128", false));
            let error = settings.undo().unwrap_err().to_string();
            assert!(error.contains("nothing to undo"), "{error}");
        });
    }

    #[test]
    fn undo_leaves_values_alone_that_were_changed_since() {
        with_settings(|settings, now| {
            settings.apply(&somaxconn("4096")).unwrap();
            fs::write(settings.root.join("net/core/somaxconn"), "777").unwrap();
            assert!(settings.undo().unwrap()[0].contains("left alone"));
            assert_eq!(now(), "777");
        });
    }

    #[test]
    fn a_state_file_changes_only_network_settings() {
        with_settings(|settings, _| {
            fs::create_dir_all(settings.state.parent().unwrap()).unwrap();
            for (text, expected) in [
                ("rubbish", "is not a file of old values"),
                (r#"{"schema":9,"settings":[]}"#, "version 9"),
                (
                    r#"{"schema":1,"settings":[{"key":"kernel.core_pattern","old":"|x","new":"core"}]}"#,
                    "not a network setting",
                ),
                (r#"{"schema":1,"settings":[{"key":"net/../../x","old":"1","new":"2"}]}"#, "not a network setting"),
            ] {
                fs::write(settings.state, text).unwrap();
                let error = format!("{:#}", settings.undo().unwrap_err());
                assert!(error.contains(expected), "{error}");
            }
        });
    }
}
