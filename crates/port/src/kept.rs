//! A guest's early ack in memory that outlives the process: a file that only its owner may read, mapped.
//!
//! The file begins with a page that says what is in it; flows and blocks follow. It is locked while it is used, and its bytes
//! are allocated when it is made: memory that is short is an error then, and no signal later.

use crate::map::Map;
use fairlane_core::PortId;
use fairlane_core::ack::{Block, Config, EarlyAck, Flow, LAYOUT, Memory, Mode};
use fairlane_core::time::Nanos;
use nix::fcntl::posix_fallocate;
use nix::unistd::geteuid;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The guest's number in its own early ack.
pub const GUEST: PortId = PortId(0);

/// Flows of a guest at most.
const FLOWS: usize = 16 << 10;

/// Blocks for a guest's copies, of 2 KiB each.
const BLOCKS: usize = 8 << 10;

/// Where flows begin, a page behind what the file says of itself.
const FLOWS_AT: usize = 4096;
const BLOCKS_AT: usize = FLOWS_AT + FLOWS * size_of::<Flow>();
const LEN: usize = BLOCKS_AT + BLOCKS * size_of::<Block>();

const _: () = assert!(BLOCKS_AT.is_multiple_of(align_of::<Block>()));

/// A guest's early ack and the memory it works in.
pub struct Kept {
    // Dropped before what it borrows.
    early: EarlyAck<'static>,
    _map: Map,
    path: PathBuf,
    /// Locked.
    _file: File,
}

impl Kept {
    /// Goes on with what is in a file, or begins with an empty one. The directory is made where there is none.
    ///
    /// # Errors
    /// What the system says: the file is used by a running process, no memory is left, it may not be written. Or a sentence: the
    /// directory or the file may be another's doing, or the file holds what another version of this program kept.
    pub fn open(path: &Path, mode: Mode, now: Nanos) -> io::Result<Kept> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            is_ours_alone(directory)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "a running process uses it"),
            TryLockError::Error(error) => error,
        })?;
        let found = says(&file)?;
        let goes_on = found == title() && file.metadata()?.len() == LEN as u64;
        if !goes_on && found.starts_with(KIND) {
            // Senders were told that what is in it arrived.
            let why = "another version of fairlane kept it, and this one cannot read it: run that one with early_ack = false until \
                       the file is gone, or remove the file, which loses what was acknowledged";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if !goes_on {
            file.set_len(0)?;
            posix_fallocate(&file, 0, LEN as i64)?;
        }
        let map = Map::of(&file, LEN)?;
        // SAFETY: the mapping has these bytes in front of `BLOCKS_AT` and `LEN`, aligned (a mapping begins at a page, and the
        // constants are multiples of the types' alignments); every pattern of bits is a flow and a block, as both are made
        // of integers alone. Nobody else reads or writes them: the file is ours by its lock and mode, and a process that
        // may break these may write to our memory anyhow. The slices are used by `early` alone, which never gives them
        // away for longer than a borrow of itself, and is dropped before the mapping.
        let memory = unsafe {
            let flows = map.start().add(FLOWS_AT).cast::<Flow>();
            let blocks = map.start().add(BLOCKS_AT).cast::<Block>();
            Memory {
                flows: std::slice::from_raw_parts_mut(flows, FLOWS),
                blocks: std::slice::from_raw_parts_mut(blocks, BLOCKS),
            }
        };
        let config = Config { seed: RandomState::new().hash_one(path), ..Config::default() };
        let early = if goes_on {
            EarlyAck::resume(memory, config, &[(GUEST, mode)], now)
        } else {
            let mut early = EarlyAck::new(memory, config);
            early.attach(GUEST, mode);
            // Last: a process that ends before has begun nothing.
            file.write_all_at(&title(), 0)?;
            early
        };
        Ok(Kept { early, _map: map, path: path.to_owned(), _file: file })
    }

    /// The early ack. What it lends lives as long as the call: hence a function of any lifetime.
    #[inline]
    pub fn with<R>(&mut self, work: impl for<'m> FnOnce(&mut EarlyAck<'m>) -> R) -> R {
        work(&mut self.early)
    }

    /// The same, to look at.
    pub fn look<R>(&self, work: impl for<'m> FnOnce(&EarlyAck<'m>) -> R) -> R {
        work(&self.early)
    }

    /// Ends it for good, and removes the file.
    pub fn discard(self) {
        // One that stays is found empty of what matters: its flows are old.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What each such file begins with, of whatever version.
const KIND: &[u8; 8] = b"FLKEPT\0\0";

/// What the file begins with: its kind, and everything that the meaning of its bytes depends on.
fn title() -> [u8; 24] {
    let mut title = [0; 24];
    title[..8].copy_from_slice(KIND);
    let numbers = [LAYOUT, size_of::<Flow>() as u32, FLOWS as u32, BLOCKS as u32];
    for (place, number) in title[8..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    title
}

/// What a file begins with; zeros where it is too short.
fn says(file: &File) -> io::Result<[u8; 24]> {
    let mut title = [0; 24];
    if file.metadata()?.len() >= title.len() as u64 {
        file.read_exact_at(&mut title, 0)?;
    }
    Ok(title)
}

/// Sees that nobody else can put a file or a link into a directory.
fn is_ours_alone(directory: &Path) -> io::Result<()> {
    let (info, me) = (directory.symlink_metadata()?, geteuid().as_raw());
    let why = match (info.is_dir(), info.uid()) {
        (false, _) => "is a link; it must be a directory itself".to_owned(),
        (true, owner) if owner != me => format!("belongs to user {owner}; it must belong to {me}, who runs this"),
        _ if info.mode() & 0o022 != 0 => {
            format!("has mode {:o}; nobody but its owner may write there", info.mode() & 0o777)
        }
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the directory {} {why}", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_its_owners_and_used_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("early-ack/web");
        let kept = Kept::open(&path, Mode::Auto, Nanos(0)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let again = Kept::open(&path, Mode::Auto, Nanos(0)).err().unwrap();
        assert_eq!(again.kind(), io::ErrorKind::ResourceBusy, "{again}");
        drop(kept);
        Kept::open(&path, Mode::Auto, Nanos(0)).unwrap().discard();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_such_file_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        for damage in [&b"short"[..], &[0xff; LEN]] {
            std::fs::write(&path, damage).unwrap();
            let mut kept = Kept::open(&path, Mode::Auto, Nanos(0)).unwrap();
            assert_eq!(kept.with(|early| early.flows().count()), 0);
        }
    }

    #[test]
    fn what_another_version_kept_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        drop(Kept::open(&path, Mode::Auto, Nanos(0)).unwrap());
        let ours = std::fs::read(&path).unwrap();
        // Another layout in as many bytes, and in more.
        for (place, extra) in [(8, 0), (16, 4096)] {
            let mut theirs = ours.clone();
            theirs[place] ^= 1;
            theirs.resize(LEN + extra, 7);
            std::fs::write(&path, &theirs).unwrap();
            let refused = Kept::open(&path, Mode::Auto, Nanos(0)).err().unwrap().to_string();
            assert!(refused.contains("another version of fairlane kept it"), "{refused}");
            assert!(std::fs::read(&path).unwrap() == theirs, "its debts are there for who can read them");
        }
    }

    #[test]
    fn neither_links_nor_directories_that_others_write_are_used() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("web"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(Kept::open(&link, Mode::Auto, Nanos(0)).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");

        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = Kept::open(&open.join("web"), Mode::Auto, Nanos(0)).err().unwrap().to_string();
        assert!(refused.contains("has mode 777; nobody but its owner may write there"), "{refused}");
        assert!(!open.join("web").exists());

        let elsewhere = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&open, &elsewhere).unwrap();
        let refused = Kept::open(&elsewhere.join("web"), Mode::Auto, Nanos(0)).err().unwrap().to_string();
        assert!(refused.contains("is a link"), "{refused}");
    }

    #[test]
    fn damaged_contents_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        drop(Kept::open(&path, Mode::Auto, Nanos(0)).unwrap());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&vec![0xa5; LEN - FLOWS_AT], FLOWS_AT as u64).unwrap();
        let mut kept = Kept::open(&path, Mode::Auto, Nanos(0)).unwrap();
        assert_eq!(kept.with(|early| early.flows().count()), 0);
    }
}
