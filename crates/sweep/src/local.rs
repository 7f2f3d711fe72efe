//! Works on a sweep here, with several threads.

use crate::grid::Grid;
use crate::store::{Error, Store};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Told how many parts are done, of how many.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Works on all parts that are not done.
///
/// # Errors
/// The rows of a part cannot be written; those of others are kept.
pub fn run(store: &Store, grid: &Grid, workers: usize, progress: Progress) -> Result<(), Error> {
    let missing = store.missing()?;
    let (parts, mut done) = (store.parts(), store.parts() - missing.len() as u64);
    progress(done, parts);
    let (to_do, work) = crossbeam_channel::bounded(missing.len());
    for part in missing {
        // There is room for all.
        let _ = to_do.send(part);
    }
    drop(to_do);
    let (finished, results) = crossbeam_channel::bounded(workers);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            let (work, finished, failed) = (work.clone(), finished.clone(), &failed);
            scope.spawn(move || {
                for part in work {
                    if failed.load(Ordering::Relaxed) || finished.send(store.work(grid, part)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(finished);
        let mut first = Ok(());
        for result in results {
            match result {
                Ok(()) => {
                    done += 1;
                    progress(done, parts);
                }
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    if first.is_ok() {
                        first = Err(error);
                    }
                }
            }
        }
        first
    })
}
