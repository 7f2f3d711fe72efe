//! A writer of cpio archives in the "newc" format, which Linux unpacks as an initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// Directory, and file, with their permissions, as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive that grows in memory.
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An archive of nothing.
    pub fn new() -> Archive {
        Archive { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a directory. A directory comes before what is in it.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    /// Adds a file that may be read and run by all.
    pub fn file(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, PROGRAM, contents);
    }

    /// The archive's bytes, its end marked.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// A header of 13 numbers, 8 hexadecimal digits each, the name with a zero, the contents; name and contents
    /// padded to 4 bytes.
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

    /// Reads an archive by the format's description: name, mode and contents of each entry.
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
        fn what_is_written_is_read(
            files in prop::collection::vec(("[a-z/.]{1,40}", prop::collection::vec(any::<u8>(), 0..100)), 0..20)
        ) {
            let mut archive = Archive::new();
            archive.directory("dir");
            files.iter().for_each(|(name, contents)| archive.file(name, contents));
            let entries = read(&archive.finish());
            prop_assert_eq!(&entries[0], &("dir".to_owned(), DIRECTORY, vec![]));
            let written: Vec<_> = files.into_iter().map(|(name, contents)| (name, PROGRAM, contents)).collect();
            prop_assert_eq!(&entries[1..], written);
        }
    }
}
