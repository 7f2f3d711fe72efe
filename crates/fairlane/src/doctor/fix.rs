//! Applies kernel settings that findings name, keeps what they were in a file, and puts that back.

use super::finding::{Finding, Setting};
use super::pinned;
use super::snapshot::Snapshot;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the old values are kept unless told otherwise.
pub const STATE: &str = "/var/lib/fairlane/doctor.json";
/// The version of that file.
const SCHEMA: u32 = 1;

/// A setting to make, and where an administrator has pinned it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What to set.
    pub setting: Setting,
    /// `FILE:LINE`, if it is pinned.
    pub pinned: Option<String>,
}

/// The kernel's settings, and the file with those that were changed.
pub struct Settings<'a> {
    /// The directory that `net.core.somaxconn` is below: /proc/sys.
    pub root: &'a Path,
    /// The file.
    pub state: &'a Path,
}

/// The file's text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
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

/// What the findings would set, each key once, by the finding that limits most.
pub fn plan(findings: &[Finding], snapshot: &Snapshot) -> Vec<Step> {
    let mut seen = BTreeSet::new();
    let settings = findings.iter().flat_map(|finding| &finding.change).filter_map(|remedy| remedy.setting.clone());
    let first = settings.filter(|setting| seen.insert(setting.key.clone()));
    first.map(|setting| Step { pinned: pinned::find(snapshot, &setting.key), setting }).collect()
}

impl Settings<'_> {
    /// Makes settings, the old values kept first; says what was done, a line each.
    ///
    /// # Errors
    /// A setting that cannot be read or written, a state file that cannot be read or written.
    pub fn apply(&self, settings: &[Setting]) -> anyhow::Result<Vec<String>> {
        let mut kept = self.kept()?;
        let mut done = Vec::new();
        for Setting { key, value } in settings {
            let old = self.get(key)?;
            if old == *value {
                continue;
            }
            // What stood there before the first change is what is put back.
            match kept.settings.iter_mut().find(|changed| changed.key == *key) {
                Some(changed) if changed.new == old => changed.new.clone_from(value),
                Some(changed) => *changed = Changed { key: key.clone(), old: old.clone(), new: value.clone() },
                None => kept.settings.push(Changed { key: key.clone(), old: old.clone(), new: value.clone() }),
            }
            self.keep(&kept)?;
            self.set(key, value)?;
            done.push(format!("{key} = {value} (was {old})"));
        }
        Ok(done)
    }

    /// Puts back what [`Settings::apply`] changed, unless somebody else has changed it since; says what was done.
    ///
    /// # Errors
    /// No file of old values, or one that is not ours; a setting that cannot be written, which stays in the file.
    pub fn undo(&self) -> anyhow::Result<Vec<String>> {
        let mut kept = self.kept()?;
        if kept.settings.is_empty() {
            bail!("{} holds nothing to undo", self.state.display());
        }
        let mut done = Vec::new();
        while let Some(Changed { key, old, new }) = kept.settings.last() {
            let now = self.get(key)?;
            if now == *new {
                self.set(key, old)?;
                done.push(format!("{key} = {old} (was {new})"));
            } else {
                done.push(format!("{key} = {now}: changed since to other than {new}, left alone"));
            }
            kept.settings.pop();
            self.keep(&kept)?;
        }
        Ok(done)
    }

    /// The path of a setting. Only the network's are ours, whatever a file says.
    fn path(&self, key: &str) -> anyhow::Result<PathBuf> {
        let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !key.starts_with("net.") || !plain {
            bail!("{key:?} is not a setting of the network (net.core.somaxconn is one)");
        }
        Ok(self.root.join(key.replace('.', "/")))
    }

    /// A setting's value, its numbers parted by a space.
    fn get(&self, key: &str) -> anyhow::Result<String> {
        let text = fs::read_to_string(self.path(key)?).with_context(|| format!("cannot read {key}"))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn set(&self, key: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.path(key)?, value).with_context(|| format!("cannot set {key} to {value}"))
    }

    fn kept(&self) -> anyhow::Result<Kept> {
        let text = match fs::read_to_string(self.state) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Kept { schema: SCHEMA, settings: Vec::new() });
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.state.display())),
        };
        let kept: Kept = serde_json::from_str(&text)
            .with_context(|| format!("{} is no file of the doctor's old values", self.state.display()))?;
        if kept.schema != SCHEMA {
            bail!("{} is of version {}, this program knows {SCHEMA}", self.state.display(), kept.schema);
        }
        Ok(kept)
    }

    /// Writes the file, whole or not at all; without settings there is none.
    fn keep(&self, kept: &Kept) -> anyhow::Result<()> {
        let write = || {
            if kept.settings.is_empty() {
                return fs::remove_file(self.state);
            }
            let directory = self.state.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::create_dir_all(directory)?;
            let file = tempfile::NamedTempFile::new_in(directory)?;
            serde_json::to_writer_pretty(&file, kept)?;
            file.as_file().sync_all()?;
            file.persist(self.state).map(drop).map_err(|error| error.error)
        };
        write().with_context(|| format!("cannot keep old values in {}", self.state.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Remedy, Sure};

    /// Settings below a directory of this test's own.
    fn with(test: impl FnOnce(&Settings, &dyn Fn() -> String)) {
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
    fn a_plan_has_each_setting_once_and_says_what_is_pinned() {
        let finding = |remedies| Finding {
            cause: "accept-queue",
            sure: Sure::Certain,
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
    fn what_stood_there_first_is_put_back() {
        with(|settings, now| {
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
    fn what_somebody_else_set_since_is_left_alone() {
        with(|settings, now| {
            settings.apply(&somaxconn("4096")).unwrap();
            fs::write(settings.root.join("net/core/somaxconn"), "777").unwrap();
            assert!(settings.undo().unwrap()[0].contains("left alone"));
            assert_eq!(now(), "777");
        });
    }

    #[test]
    fn a_state_file_reaches_nothing_but_the_network() {
        with(|settings, _| {
            fs::create_dir_all(settings.state.parent().unwrap()).unwrap();
            for (text, sentence) in [
                ("rubbish", "is no file of the doctor's"),
                (r#"{"schema":9,"settings":[]}"#, "version 9"),
                (r#"{"schema":1,"settings":[{"key":"kernel.core_pattern","old":"|x","new":"core"}]}"#, "not a setting"),
                (r#"{"schema":1,"settings":[{"key":"net/../../x","old":"1","new":"2"}]}"#, "not a setting"),
            ] {
                fs::write(settings.state, text).unwrap();
                let error = format!("{:#}", settings.undo().unwrap_err());
                assert!(error.contains(sentence), "{error}");
            }
        });
    }
}
