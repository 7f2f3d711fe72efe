//! A guest's early ack in memory that outlives the process: a file that only its owner may read, mapped.
//!
//! The file begins with a page that says what is in it; flows and blocks follow. It is locked while it is used, and its bytes
//! are allocated when it is made: memory that is short is an error then, and no signal later.

use crate::map::Map;
use fairlane_core::PortId;
use fairlane_core::ack::{Block, Config, EarlyAck, Flow, LAYOUT, Memory, Mode};
use fairlane_core::time::Nanos;
use nix::fcntl::posix_fallocate;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
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
    /// What the system says: the file is used by a running process, no memory is left, it may not be written.
    pub fn open(path: &Path, mode: Mode, now: Nanos) -> io::Result<Kept> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "a running process uses it"),
            TryLockError::Error(error) => error,
        })?;
        let goes_on = says(&file)? == Some(title());
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

/// What the file begins with: its kind, and everything that the meaning of its bytes depends on.
fn title() -> [u8; 24] {
    let mut title = *b"FLKEPT\0\0................";
    let numbers = [LAYOUT, size_of::<Flow>() as u32, FLOWS as u32, BLOCKS as u32];
    for (place, number) in title[8..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    title
}

/// What a file begins with; none if it is of another length.
fn says(file: &File) -> io::Result<Option<[u8; 24]>> {
    let mut title = [0; 24];
    if file.metadata()?.len() != LEN as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut title, 0)?;
    Ok(Some(title))
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
