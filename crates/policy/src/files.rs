//! The files that a policy consists of: the policy file, and drop-ins that add to it. A wrong drop-in costs only itself.

use super::{Policy, Vif};
use crate::parse::merge;
use crate::problem::{Problem, document};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// The drop-in that `fairlane ctl save` writes. It is read last, so that it can replace what other files say.
pub const SAVED: &str = "saved.toml";

/// The directory of a policy file's drop-ins: `policy.d` for `policy.toml`.
pub fn drop_in_directory(policy: &Path) -> PathBuf {
    policy.with_extension("d")
}

/// A file's name, as problems call it, and its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// The name.
    pub name: String,
    /// The text.
    pub text: String,
    /// Why it could not be read, if that is so.
    pub unreadable: Option<String>,
}

impl File {
    /// A file with this name and text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> File {
        File { name: name.into(), text: text.into(), unreadable: None }
    }

    /// A file that could not be read.
    pub fn unreadable(name: impl Into<String>, why: impl Into<String>) -> File {
        File { name: name.into(), text: String::new(), unreadable: Some(why.into()) }
    }

    /// Its text as TOML.
    ///
    /// # Errors
    /// It could not be read, or every syntax error.
    pub(super) fn document(&self) -> Result<DeTable<'_>, Vec<Problem>> {
        match &self.unreadable {
            None => document(&self.name, &self.text),
            Some(why) => {
                Err(vec![Problem { file: self.name.clone(), line: 1, message: format!("cannot be read: {why}") }])
            }
        }
    }

    /// Its name in its directory, which a client may reach by another path than the backend.
    fn base_name(&self) -> &str {
        Path::new(&self.name).file_name().and_then(|name| name.to_str()).unwrap_or(&self.name)
    }

    fn is_saved(&self) -> bool {
        self.base_name() == SAVED
    }
}

/// A policy file and its drop-ins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The policy file.
    pub policy: File,
    /// The drop-ins, in the order in which they are read.
    drop_ins: Vec<File>,
}

/// A policy from files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    /// What the files say without [`SAVED`].
    pub base: Policy,
    /// The vifs of drop-ins. One that cannot be served when the backend starts costs only itself.
    pub of_drop_ins: HashSet<String>,
    /// Those that are not served, as the backend found. Their files still have them.
    pub left_out: Vec<Vif>,
    /// The files with the texts that are in force: a wrong drop-in has its former text, or is left out.
    pub files: Files,
    /// What is wrong with drop-ins, by file and line.
    pub problems: Vec<Problem>,
    /// Whether [`SAVED`] is among the wrong ones, so that there is more in it than is in force.
    pub wrong_saved: bool,
}

/// A policy and the vifs of its drop-ins, or all problems.
type Parsed = Result<(Policy, HashSet<String>), Vec<Problem>>;

/// The files and lines with problems.
fn places(parsed: &Parsed) -> HashSet<(String, usize)> {
    let problems = parsed.as_ref().err().into_iter().flatten();
    problems.map(|problem| (problem.file.clone(), problem.line)).collect()
}

impl From<Policy> for Loaded {
    /// A policy without files.
    fn from(policy: Policy) -> Loaded {
        let (base, of_drop_ins, left_out) = (policy.clone(), HashSet::new(), Vec::new());
        let (files, problems, wrong_saved) = Default::default();
        Loaded { policy, base, of_drop_ins, left_out, files, problems, wrong_saved }
    }
}

impl Files {
    /// Puts drop-ins into their order: by name, and [`SAVED`] last.
    pub fn new(policy: File, mut drop_ins: Vec<File>) -> Files {
        drop_ins.sort_by(|a, b| (a.is_saved(), a.base_name()).cmp(&(b.is_saved(), b.base_name())));
        Files { policy, drop_ins }
    }

    /// The drop-ins, in the order in which they are read.
    pub fn drop_ins(&self) -> &[File] {
        &self.drop_ins
    }

    /// The absolute path of [`SAVED`] among the drop-ins; none without a policy file.
    pub fn saved(&self) -> Option<PathBuf> {
        let policy = std::path::absolute(&self.policy.name).ok()?;
        Some(drop_in_directory(&policy).join(SAVED))
    }

    /// All files.
    pub fn all(&self) -> impl Iterator<Item = &File> {
        std::iter::once(&self.policy).chain(&self.drop_ins)
    }

    /// Loads the files. A drop-in that is wrong, or does not fit to the others, keeps what `former` says, the files that are in force.
    ///
    /// # Errors
    /// The policy file is wrong, or does not fit to drop-ins that have not changed: all problems, by file and line.
    pub fn load(&self, former: &Files) -> Result<Loaded, Vec<Problem>> {
        let all = match self.parse() {
            Ok(policy) => return Ok(self.clone().loaded(policy, Vec::new(), false)),
            Err(all) => all,
        };
        let mut files = Files::new(self.policy.clone(), former.drop_ins.clone());
        let mut parsed = files.parse();
        let mut waiting = self.changed(former);
        // The policy file may need what only a drop-in has. One that mends something is taken first: what else is wrong may be
        // seen only then. Only if there is none, those are taken that do no harm, as others may need them.
        let mut only_mending = true;
        loop {
            let before = waiting.len();
            let mut problems = Vec::new();
            // Every change of a drop-in is tried on its own, again as long as that helps one that needs another.
            waiting.retain(|name| {
                let next = files.with(name, self.find(name).cloned());
                let (found, wrong) = (next.parse(), places(&parsed));
                let left = places(&found);
                let mends = left.len() < wrong.len() || wrong.is_empty() || !only_mending;
                if mends && left.is_subset(&wrong) {
                    (files, parsed) = (next, found);
                    return false;
                }
                problems.extend(found.err().into_iter().flatten());
                true
            });
            let is_stuck = waiting.len() == before;
            if waiting.is_empty() || is_stuck && (parsed.is_ok() || !only_mending) {
                let wrong_saved = waiting.iter().any(|name| name == SAVED);
                return parsed.map(|policy| files.loaded(policy, problems, wrong_saved)).map_err(|_| all);
            }
            only_mending = !is_stuck;
        }
    }

    fn loaded(
        self,
        (policy, of_drop_ins): (Policy, HashSet<String>),
        problems: Vec<Problem>,
        wrong_saved: bool,
    ) -> Loaded {
        let others: Vec<&File> = self.all().filter(|file| !file.is_saved()).collect();
        // Without what was saved the others may lack something. Then all that runs counts as added.
        let base = merge(&others).map(|(base, _)| base);
        let nothing = |_| Policy { links: Vec::new(), tenants: Vec::new(), vifs: Vec::new(), ..policy.clone() };
        let (base, left_out) = (base.unwrap_or_else(nothing), Vec::new());
        Loaded { base, policy, of_drop_ins, left_out, files: self, problems, wrong_saved }
    }

    fn parse(&self) -> Parsed {
        merge(&self.all().collect::<Vec<_>>())
    }

    fn find(&self, name: &str) -> Option<&File> {
        self.drop_ins.iter().find(|file| file.base_name() == name)
    }

    /// The names of drop-ins that are different in `former`, or only in one of both.
    fn changed(&self, former: &Files) -> Vec<String> {
        let names: BTreeSet<&str> = self.drop_ins.iter().chain(&former.drop_ins).map(File::base_name).collect();
        let content = |files: &Files, name| files.find(name).map(|file| (file.text.clone(), file.unreadable.clone()));
        names.into_iter().filter(|name| content(self, name) != content(former, name)).map(str::to_owned).collect()
    }

    /// The same with another version of a drop-in, or without it.
    fn with(&self, name: &str, version: Option<File>) -> Files {
        let others = self.drop_ins.iter().filter(|file| file.base_name() != name).cloned();
        Files::new(self.policy.clone(), others.chain(version).collect())
    }
}
