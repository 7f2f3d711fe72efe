//! Huge pages, reserved for as long as a test needs them.

use std::fs;

const PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// As many pages as there were before are left once it is dropped.
pub struct Reserved(u64);

/// Sees that so many pages are reserved. None if they cannot be: it takes root, and memory in pieces large enough.
pub fn reserve(pages: u64) -> Option<Reserved> {
    let reserved = || fs::read_to_string(PAGES).ok()?.trim().parse::<u64>().ok();
    let before = Reserved(reserved()?);
    if before.0 < pages {
        fs::write(PAGES, pages.to_string()).ok()?;
    }
    (reserved()? >= pages).then_some(before)
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Who may not write it has not changed it.
        let _ = fs::write(PAGES, self.0.to_string());
    }
}
