//! A writer of cpio archives in the "newc" format, which Linux unpacks as an initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

/// Types and permissions of a directory, a file and a symbolic link, as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// An archive in memory.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    pub(crate) fn new() -> Archive {
        Archive { bytes: Vec::new(), entries: 0, directories: BTreeSet::new() }
    }

    /// Adds a directory and its missing parents. Each directory comes before its entries.
    pub(crate) fn directory(&mut self, name: &str) {
        if self.directories.insert(name.to_owned()) {
            self.parents(name);
            self.entry(name, DIRECTORY, &[]);
        }
    }

    /// Adds a file that everyone may read and execute, and its missing parents.
    pub(crate) fn file(&mut self, name: &str, contents: &[u8]) {
        self.parents(name);
        self.entry(name, PROGRAM, contents);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, name: &str, to: &str) {
        self.parents(name);
        self.entry(name, LINK, to.as_bytes());
    }

    fn parents(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
    }

    /// The archive's bytes, with the trailer.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// Appends a header of 13 numbers of 8 hexadecimal digits, the name with a terminating zero, and the contents; name and
    /// contents are padded to 4 bytes.
    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).expect("a file in an initramfs is smaller than 4 GiB");
        let (links, name_size) = (1, name.len() as u32 + 1);
        self.bytes.extend_from_slice(b"070701");
        for field in [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses an archive by the format's description: name, mode and contents of each entry.
    fn read(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut entries) = (0, Vec::new());
        loop {
            let header = &archive[at..at + 110];
            assert_eq!(&header[..6], b"070701");
            let field = |n: usize| {
                let digits = std::str::from_utf8(&header[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = &archive[at + 110..at + 110 + name_size];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..name_size - 1].to_vec()).unwrap();
            let contents = (at + 110 + name_size).next_multiple_of(4);
            at = (contents + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(at, archive.len());
                return entries;
            }
            entries.push((name, mode, archive[contents..contents + size].to_vec()));
        }
    }

    proptest! {
        #[test]
        fn an_archive_has_what_was_added(
            files in prop::collection::vec(("[a-z.]{1,9}(/[a-z.]{1,9}){0,3}", prop::collection::vec(any::<u8>(), 0..100)), 0..20)
        ) {
            let mut archive = Archive::new();
            archive.directory("dir/inner");
            files.iter().for_each(|(name, contents)| archive.file(name, contents));
            let entries = read(&archive.finish());
            prop_assert_eq!(&entries[..2], &[("dir".to_owned(), DIRECTORY, vec![]), ("dir/inner".to_owned(), DIRECTORY, vec![])]);
            let written: Vec<_> = files.into_iter().map(|(name, contents)| (name, PROGRAM, contents)).collect();
            let (directories, plain): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(|entry| entry.1 == DIRECTORY);
            prop_assert_eq!(plain, written);
            for (at, (name, ..)) in entries.iter().enumerate() {
                let parent = name.rsplit_once('/').map(|(parent, _)| parent);
                let before = |parent| entries[..at].iter().any(|(name, mode, _)| name == parent && *mode == DIRECTORY);
                prop_assert!(parent.is_none_or(before), "{} comes after its directory", name);
            }
            let once: BTreeSet<_> = directories.iter().map(|(name, ..)| name).collect();
            prop_assert_eq!(once.len(), directories.len());
        }
    }
}
