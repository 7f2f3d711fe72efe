//! Reserves huge pages for the duration of a test.

use std::fs;

const PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Restores the previous number of huge pages on drop.
pub(crate) struct Reserved(u64);

/// Reserves huge pages. None if that fails: it needs root and unfragmented memory.
pub(crate) fn reserve(pages: u64) -> Option<Reserved> {
    let reserved = || fs::read_to_string(PAGES).ok()?.trim().parse::<u64>().ok();
    let before = Reserved(reserved()?);
    if before.0 < pages {
        fs::write(PAGES, pages.to_string()).ok()?;
    }
    (reserved()? >= pages).then_some(before)
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Without the permission to write, it has not been changed.
        let _ = fs::write(PAGES, self.0.to_string());
    }
}
