//! Finds the shared libraries that programs load. It reads the programs' files, as they may belong to another system.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use object::{
    Endianness,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{Dyn, FileHeader},
};

use crate::{
    contents::entries,
    error::{Error, IoContext},
};

/// Where Debian keeps libraries.
const DIRECTORIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// The libraries of several directory trees, by name.
pub(crate) struct Libraries(BTreeMap<String, PathBuf>);

impl Libraries {
    /// Lists the libraries of the trees.
    pub(crate) fn list(trees: &[PathBuf]) -> Result<Libraries, Error> {
        let directories = trees.iter().flat_map(|tree| DIRECTORIES.map(|directory| tree.join(directory)));
        let mut found = BTreeMap::new();
        for directory in directories.filter(|directory| directory.is_dir()) {
            for path in entries(&directory)? {
                found.insert(name(&path), path);
            }
        }
        Ok(Libraries(found))
    }

    /// The libraries that `programs` load, directly or indirectly, by the name they are loaded by.
    ///
    /// # Errors
    /// [`Error::Missing`] if a library is in none of the trees.
    pub(crate) fn of(&self, programs: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>, Error> {
        let mut all = BTreeMap::new();
        let mut unread: Vec<PathBuf> = programs.to_vec();
        while let Some(path) = unread.pop() {
            let bytes = fs::read(&path).doing(|| path.display().to_string())?;
            for need in needed(&bytes) {
                let library = self.0.get(&need).ok_or_else(|| {
                    Error::Missing(format!("{}: it loads {need}, which no fetched package has", path.display()))
                })?;
                if all.insert(need, library.clone()).is_none() {
                    unread.push(library.clone());
                }
            }
        }
        Ok(all)
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The entries `DT_NEEDED` of a file's dynamic section; empty if it has no such section.
fn needed(file: &[u8]) -> Vec<String> {
    let read = || -> object::Result<Vec<String>> {
        let header = FileHeader64::<Endianness>::parse(file)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, file)?;
        let Some((entries, index)) = sections.dynamic(endian, file)? else { return Ok(Vec::new()) };
        let names = sections.strings(endian, file, index)?;
        let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
        needed.map(|entry| Ok(String::from_utf8_lossy(entry.string(endian, names)?).into_owned())).collect()
    };
    read().unwrap_or_default()
}
