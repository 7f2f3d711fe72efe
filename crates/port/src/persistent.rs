//! A guest's early-ack state in memory that outlives the process: a mapped file that only its owner may read.
//!
//! The file begins with a page that describes it; flows and blocks follow. It is locked while in use. Its bytes are
//! allocated before they are used, a few at first and more when these are nearly used up: so a guest's memory grows
//! with its use, and a shortage of memory is an error at allocation, never a signal later.

use crate::map::Map;
use fairlane_core::ack::{Block, Config, EarlyAck, Extent, Flow, ImportError, LAYOUT, Memory, Mode};
use fairlane_core::time::Nanos;
use nix::fcntl::posix_fallocate;
use nix::unistd::geteuid;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tracing::warn;

/// The most flows of a guest.
const FLOWS: usize = 16 << 10;

/// The most blocks for a guest's copies, of 2 KiB each.
const BLOCKS: usize = 8 << 10;

/// Flows and blocks allocated at first: 576 KiB, of which half are a burst of large frames or more. They are doubled
/// when needed.
const FIRST: Extent = Extent { flows: 256, blocks: 256 };

/// Offset of the allocated extent in the first page, after the [title].
const EXTENT_AT: u64 = 24;

/// Offset of a byte that is 1 if the guest had received all acknowledged data when the process ended. It is at the same
/// offset in every version, because it tells whether another version may start again.
const SETTLED_AT: u64 = 32;

/// Offset of the flows, one page after the description.
const FLOWS_AT: usize = 4096;
const BLOCKS_AT: usize = FLOWS_AT + FLOWS * size_of::<Flow>();
const LEN: usize = BLOCKS_AT + BLOCKS * size_of::<Block>();

const _: () = assert!(BLOCKS_AT.is_multiple_of(align_of::<Block>()));

/// A guest's early-ack state and the memory it uses.
pub struct PersistentState {
    // Declared before `_map` to be dropped first.
    early: EarlyAck<'static>,
    _map: Map,
    path: PathBuf,
    /// Locked.
    file: File,
    /// Whether an allocation failed: growth is not tried again, as each attempt would cost the guest's neighbours time.
    is_stuck: bool,
}

impl PersistentState {
    /// Resumes from a file, or creates it. The directory is created if necessary.
    ///
    /// # Errors
    /// The system's error: the file is used by a running process, no memory is left, or it may not be written. Or text
    /// that names the reason: others may have written the directory or the file, or the file belongs to another version
    /// of this program.
    pub fn open(path: &Path, mode: Mode, now: Nanos) -> io::Result<PersistentState> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            check_directory(directory)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        check_file(&file)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "a running process uses it"),
            TryLockError::Error(error) => error,
        })?;
        let (found, len) = (describe(&file)?, file.metadata()?.len());
        let (is_ours, is_whole) = (found.title == title(), len == LEN as u64);
        let resumes = is_ours && is_whole;
        if !resumes && found.title.starts_with(KIND) && !found.is_settled {
            // Senders were told that the data in it was delivered.
            return Err(unreadable(is_ours, len));
        }
        let extent = if resumes { allocated(&file)? } else { FIRST };
        if resumes {
            file.write_all_at(&[0], SETTLED_AT)?;
        } else {
            file.set_len(0)?;
            file.set_len(LEN as u64)?;
        }
        // Also on resuming: a copy of the file may have holes where it was zero.
        allocate(&file, Extent { flows: 0, blocks: 0 }, extent)?;
        let map = Map::of(&file, LEN)?;
        #[expect(clippy::disallowed_methods, reason = "no guest has this memory")]
        // SAFETY: the mapping has these bytes before `BLOCKS_AT` and `LEN`, aligned (a mapping begins at a page, and
        // the constants are multiples of the types' alignments). Every bit pattern is a valid flow and block, as both
        // consist of integers only. Nobody else reads or writes them: the file is ours by its lock and mode, and a
        // process that can bypass these can write to our memory anyway. The slices are used by `early` alone, which
        // never lends them for longer than a borrow of itself, and is dropped before the mapping.
        let memory = unsafe {
            let flows = map.start().add(FLOWS_AT).cast::<Flow>();
            let blocks = map.start().add(BLOCKS_AT).cast::<Block>();
            Memory {
                flows: std::slice::from_raw_parts_mut(flows, FLOWS),
                blocks: std::slice::from_raw_parts_mut(blocks, BLOCKS),
            }
        };
        let config = Config { seed: RandomState::new().hash_one(path), extent, ..Config::default() };
        let early = if resumes {
            EarlyAck::resume(memory, config, mode, now)
        } else {
            let early = EarlyAck::new(memory, config, mode);
            // Written last: a process that ends before has started nothing.
            file.write_all_at(&title(), 0)?;
            early
        };
        Ok(PersistentState { early, _map: map, path: path.to_owned(), file, is_stuck: false })
    }

    /// Doubles the memory that is short. False if there is no more, or none is short.
    #[cold]
    fn grow(&mut self, (flows_are, blocks_are): (bool, bool)) -> bool {
        let now = self.early.extent();
        let Extent { flows, blocks } = now;
        let next = Extent {
            flows: if flows_are { (2 * flows).min(FLOWS) } else { flows },
            blocks: if blocks_are { (2 * blocks).min(BLOCKS) } else { blocks },
        };
        if next == now || self.is_stuck {
            return false;
        }
        match allocate(&self.file, now, next) {
            Ok(()) => self.early.grow(next),
            Err(error) => {
                warn!("early ack in {} continues with {flows} flows and {blocks} blocks: {error}", self.path.display());
                self.is_stuck = true;
            }
        }
        !self.is_stuck
    }

    /// Imports flows from another backend, with as much memory as they need. Returns how many.
    ///
    /// # Errors
    /// What is wrong with them; then none was imported.
    pub fn import(&mut self, export: &[u8], now: Nanos) -> Result<u32, ImportError> {
        loop {
            match self.early.import(export, now) {
                Err(ImportError::Full(_)) if self.grow((true, true)) => {}
                result => return result,
            }
        }
    }

    /// Calls `work` with the early-ack state. What that borrows lives as long as the call: hence a closure for any
    /// lifetime.
    #[inline]
    pub fn with<R>(&mut self, work: impl for<'m> FnOnce(&mut EarlyAck<'m>) -> R) -> R {
        let result = work(&mut self.early);
        let short = self.early.is_short();
        if short != (false, false) {
            self.grow(short);
        }
        result
    }

    /// [`PersistentState::with`] for reading.
    pub fn look<R>(&self, work: impl for<'m> FnOnce(&EarlyAck<'m>) -> R) -> R {
        work(&self.early)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends it for good, and removes the file.
    pub fn discard(self) {
        // A file that cannot be removed does no harm: its flows are stale.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for PersistentState {
    fn drop(&mut self) {
        if self.early.flows().all(|flow| flow.owed == 0) {
            // If this fails nothing is lost: another version refuses the file, and this one resumes from it.
            let _ = self.file.write_all_at(&[1], SETTLED_AT);
        }
    }
}

/// The first bytes of such a file, in every version.
const KIND: &[u8; 8] = b"FLKEPT\0\0";

/// The file's title: its kind, and everything that the meaning of its bytes depends on.
fn title() -> [u8; 24] {
    let mut title = [0; 24];
    title[..8].copy_from_slice(KIND);
    let numbers = [LAYOUT, size_of::<Flow>() as u32, FLOWS as u32, BLOCKS as u32];
    for (place, number) in title[8..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    title
}

/// The description in a file's first page.
struct Description {
    title: [u8; 24],
    is_settled: bool,
}

/// Reads a file's description; zeros if it is too short.
fn describe(file: &File) -> io::Result<Description> {
    let mut page = [0; SETTLED_AT as usize + 1];
    if file.metadata()?.len() >= page.len() as u64 {
        file.read_exact_at(&mut page, 0)?;
    }
    let [title @ .., _, _, _, _, _, _, _, _, settled] = page;
    Ok(Description { title, is_settled: settled == 1 })
}

/// Why a file with undelivered data cannot be used: it is of this version and truncated, or of another version.
fn unreadable(is_ours: bool, len: u64) -> io::Error {
    let why = if is_ours {
        format!("it has {len} bytes and must have {LEN}: restore a complete copy")
    } else {
        "another version of fairlane wrote it, and this one cannot read it: run that one with early_ack = false until the file is \
         gone, or stop it when its guests have received everything"
            .to_owned()
    };
    let why = format!("{why}; or remove the file, which loses what was acknowledged");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Checks that a file is a regular file with one name, and that nobody else can read or write the data of connections.
fn check_file(file: &File) -> io::Result<()> {
    let (info, me) = (file.metadata()?, geteuid().as_raw());
    let why = match (info.is_file(), info.uid(), info.nlink()) {
        (false, ..) => "it is not a regular file".to_owned(),
        (true, owner, _) if owner != me => {
            format!("it belongs to user {owner}; it must belong to {me}, the user of this process")
        }
        (true, _, names @ 2..) => format!("it has {names} names; it must have one"),
        _ if info.mode() & 0o077 != 0 => {
            format!("it has mode {:o}; nobody but its owner may read or write it (600)", info.mode() & 0o777)
        }
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Allocates the flows and blocks by which one extent exceeds another, and writes the new extent into the file.
fn allocate(file: &File, from: Extent, to: Extent) -> io::Result<()> {
    let flows = (FLOWS_AT, size_of::<Flow>(), from.flows..to.flows);
    let blocks = (BLOCKS_AT, size_of::<Block>(), from.blocks..to.blocks);
    for (start, size, more) in [flows, blocks] {
        if !more.is_empty() {
            posix_fallocate(file, (start + more.start * size) as i64, (more.len() * size) as i64)?;
        }
    }
    let numbers = [to.flows as u32, to.blocks as u32].map(u32::to_le_bytes);
    file.write_all_at(numbers.as_flattened(), EXTENT_AT)
}

/// The extent that a file states as allocated.
fn allocated(file: &File) -> io::Result<Extent> {
    let mut numbers = [[0; 4]; 2];
    file.read_exact_at(numbers.as_flattened_mut(), EXTENT_AT)?;
    let [flows, blocks] = numbers.map(|number| u32::from_le_bytes(number) as usize);
    Ok(Extent { flows: flows.clamp(FIRST.flows, FLOWS), blocks: blocks.clamp(FIRST.blocks, BLOCKS) })
}

/// Checks that nobody else can put a file or a link into a directory.
fn check_directory(directory: &Path) -> io::Result<()> {
    let (info, me) = (directory.symlink_metadata()?, geteuid().as_raw());
    let why = match (info.is_dir(), info.uid()) {
        (false, _) => "is a link; it must be a directory itself".to_owned(),
        (true, owner) if owner != me => {
            format!("belongs to user {owner}; it must belong to {me}, the user of this process")
        }
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
    use fairlane_core::ack::Direction;
    use fairlane_core::packet::{Checksum, Compose, TcpFlags};
    use nix::mount::{MsFlags, mount, umount};
    use nix::sched::{CloneFlags, unshare};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_private_and_used_by_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("early-ack/web");
        let state = PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let again = PersistentState::open(&path, Mode::Auto, Nanos(0)).err().unwrap();
        assert_eq!(again.kind(), io::ErrorKind::ResourceBusy, "{again}");
        drop(state);
        PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap().discard();
        assert!(!path.exists());
    }

    /// Writes a file that only its owner may read.
    fn write(path: &Path, bytes: &[u8]) {
        std::fs::write(path, bytes).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_file_of_another_kind_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        for damage in [&b"short"[..], &[0xff; LEN]] {
            write(&path, damage);
            let mut state = PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap();
            assert_eq!(state.with(|early| early.flows().count()), 0);
        }
    }

    #[test]
    fn a_file_of_another_version_is_left_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        let state = PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap();
        // As a killed process leaves it.
        let ours = std::fs::read(&path).unwrap();
        drop(state);
        // Another layout in as many bytes, and in more; and ours, truncated.
        let another = "another version of fairlane wrote it";
        for (place, change, len, why) in
            [(8, 1, LEN, another), (16, 1, LEN + 4096, another), (8, 0, LEN - 1, "must have")]
        {
            let mut another_version = ours.clone();
            another_version[place] ^= change;
            another_version.resize(len, 7);
            write(&path, &another_version);
            // Also if early ack is disabled by now: senders received the acknowledgments all the same.
            for mode in [Mode::Auto, Mode::Off] {
                let refused = PersistentState::open(&path, mode, Nanos(0)).err().unwrap().to_string();
                assert!(refused.contains(why) && refused.contains("or remove the file"), "{refused}");
                assert!(
                    std::fs::read(&path).unwrap() == another_version,
                    "its data is left for a version that can read it"
                );
            }
        }
    }

    #[test]
    fn a_settled_file_of_another_version_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        let mut state = PersistentState::open(&path, Mode::Always, Nanos(0)).unwrap();
        connect(&mut state, 1..2);
        let another_version = |state: PersistentState| {
            drop(state);
            let mut another_version = std::fs::read(&path).unwrap();
            another_version[8] ^= 1;
            write(&path, &another_version);
            let opened = PersistentState::open(&path, Mode::Auto, Nanos(0))
                .map(|state| state.look(|early| early.flows().count()));
            another_version[8] ^= 1;
            write(&path, &another_version);
            opened
        };
        assert_eq!(another_version(state).unwrap(), 0, "its guest has everything");
        // The same, but a sender has an acknowledgment for data that the guest lacks.
        let mut state = PersistentState::open(&path, Mode::Always, Nanos(0)).unwrap();
        acknowledge(&mut state, 2);
        assert_eq!(another_version(state).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // It was settled, and is in use again.
        let state = PersistentState::open(&path, Mode::Always, Nanos(0)).unwrap();
        assert!(!describe(&state.file).unwrap().is_settled);
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        let refused = || PersistentState::open(&path, Mode::Auto, Nanos(0)).err().unwrap().to_string();
        write(&path, b"");
        std::fs::hard_link(&path, directory.path().join("other")).unwrap();
        assert!(refused().contains("it has 2 names"), "{}", refused());
        std::fs::remove_file(directory.path().join("other")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(refused().contains("it has mode 640"), "{}", refused());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        assert!(refused().contains("it belongs to user 1"), "{}", refused());
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused().contains("it is not a regular file"), "{}", refused());
    }

    #[test]
    fn links_and_directories_that_others_write_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("web"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(PersistentState::open(&link, Mode::Auto, Nanos(0)).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");

        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = PersistentState::open(&open.join("web"), Mode::Auto, Nanos(0)).err().unwrap().to_string();
        assert!(refused.contains("has mode 777; nobody but its owner may write there"), "{refused}");
        assert!(!open.join("web").exists());

        let elsewhere = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&open, &elsewhere).unwrap();
        let refused = PersistentState::open(&elsewhere.join("web"), Mode::Auto, Nanos(0)).err().unwrap().to_string();
        assert!(refused.contains("is a link"), "{refused}");
    }

    /// Shows the table a frame of a connection from this port outside.
    fn show(
        state: &mut PersistentState,
        way: Direction,
        port: u16,
        (sequence, acknowledgment): (u32, u32),
        flags: TcpFlags,
        payload: usize,
    ) {
        let (outside, inside) = (([10, 0, 0, 1].into(), port), ([10, 0, 0, 2].into(), 80));
        let (source, destination) = if way == Direction::In { (outside, inside) } else { (inside, outside) };
        let (link, window, timestamps) = (&[2; 12][..], 9000, None);
        let (mut out, mut sights) = (Vec::new(), Vec::new());
        Compose { link, source, destination, sequence, acknowledgment, flags, window, timestamps }
            .write(&mut out, |out| out.resize(out.len() + payload, 7));
        state.with(|early| {
            early.look_up(&mut sights, way, std::iter::once((&out[..], out.len())), Nanos(1));
            if way == Direction::In {
                early.delivered(&sights[0], &out[..], Checksum::Present, Nanos(1));
            } else {
                early.from_guest(&sights[0], &mut out, Checksum::Present, Nanos(1));
            }
        });
    }

    /// Opens connections from these ports, and lets the guest accept each.
    fn connect(state: &mut PersistentState, ports: std::ops::Range<u16>) {
        for port in ports {
            show(state, Direction::In, port, (0, 0), TcpFlags::SYN, 0);
            show(state, Direction::Out, port, (0, 1), TcpFlags::SYN.with(TcpFlags::ACK), 0);
            show(state, Direction::In, port, (1, 1), TcpFlags::ACK, 0);
        }
    }

    /// Opens a connection, and acknowledges 100 bytes of it early.
    fn acknowledge(state: &mut PersistentState, port: u16) {
        connect(state, port..port + 1);
        show(state, Direction::In, port, (1, 1), TcpFlags::ACK, 100);
        assert_eq!(state.look(|early| early.flows().map(|flow| flow.owed).sum::<u32>()), 100);
    }

    #[test]
    fn memory_is_allocated_as_it_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
        let mut state = PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap();
        assert!(allocated() < 700 << 10, "{}", allocated());
        let count = |state: &PersistentState| state.look(|early| early.flows().count());
        connect(&mut state, 1..1001);
        assert_eq!(count(&state), 1000);
        assert!((700 << 10..2 << 20).contains(&allocated()), "{}", allocated());
        drop(state);
        let mut state = PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap();
        assert_eq!(count(&state), 1000);
        // Flows imported all at once find room as well.
        let export = state.with(|early| early.export());
        let mut target = PersistentState::open(&directory.path().join("target"), Mode::Auto, Nanos(0)).unwrap();
        assert_eq!(target.import(&export, Nanos(1)), Ok(1000));
        connect(&mut state, 1001..20_001);
        assert_eq!(count(&state), FLOWS);
    }

    /// When memory is short a guest's early ack continues with what it has; one that has none yet is refused.
    #[test]
    fn a_shortage_of_memory_is_an_error_and_no_signal() {
        let directory = tempfile::tempdir().unwrap();
        // Only for this thread.
        unshare(CloneFlags::CLONE_NEWNS).expect("the test may create a namespace");
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_PRIVATE | MsFlags::MS_REC, nothing).unwrap();
        mount(Some("tmpfs"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some("size=700k,mode=700")).unwrap();
        let mut state = PersistentState::open(&directory.path().join("web"), Mode::Auto, Nanos(0)).unwrap();
        connect(&mut state, 1..1001);
        let count = state.look(|early| early.flows().count());
        assert!((FIRST.flows..1000).contains(&count), "{count}");
        let refused = PersistentState::open(&directory.path().join("batch"), Mode::Auto, Nanos(0)).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        drop(state);
        umount(directory.path()).unwrap();
    }

    #[test]
    fn damaged_contents_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        drop(PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&vec![0xa5; LEN - FLOWS_AT], FLOWS_AT as u64).unwrap();
        let mut state = PersistentState::open(&path, Mode::Auto, Nanos(0)).unwrap();
        assert_eq!(state.with(|early| early.flows().count()), 0);
    }
}
