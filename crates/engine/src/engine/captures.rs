//! Captures of vifs' frames: started and stopped by control clients, recorded by workers, written by threads of their own.

use super::{Error, Shared, create};
use crate::control::{CaptureReport, StartCapture};
use fairlane_port::capture::{self, Recording, Report};
use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Default limit of a capture's file, in bytes.
const LIMIT: u64 = 1 << 30;

/// How long to wait for the rest of a capture to be written.
const PATIENCE: Duration = Duration::from_secs(5);

impl Shared {
    pub(super) fn start_capture(&self, start: &StartCapture) -> Result<(), Error> {
        let file = create(&start.file)?;
        let started = self.record(start, file);
        if started.is_err() {
            // Nothing of use was written to it.
            let _ = std::fs::remove_file(&start.file);
        }
        started
    }

    fn record(&self, start: &StartCapture, file: std::fs::File) -> Result<(), Error> {
        let worker = self.worker_of(&start.vif)?;
        let (snap, limit) = (start.snap.unwrap_or(u32::MAX), start.limit.unwrap_or(LIMIT));
        let said = |error| Error::failed(format!("cannot capture vif `{}`", start.vif), error);
        let (recorder, recording) = capture::start(file, snap, limit).map_err(said)?;
        let name = start.vif.clone();
        let mut captures = self.captures();
        let started = worker.call(move |work| {
            let (bridge, port) = work.vif(&name)?;
            Some(work.bridges[bridge].start_capture(port, recorder))
        })?;
        if started != Some(true) {
            return Err(Error::Captured(start.vif.clone()));
        }
        captures.insert(start.vif.clone(), recording);
        Ok(())
    }

    pub(super) fn stop_capture(&self, vif: &str) -> Result<CaptureReport, Error> {
        let worker = self.worker_of(vif)?;
        let name = vif.to_owned();
        let mut captures = self.captures();
        worker.call(move |work| {
            if let Some((bridge, port)) = work.vif(&name) {
                work.bridges[bridge].stop_capture(port);
            }
        })?;
        let recording = captures.remove(vif);
        drop(captures);
        let recording = recording.ok_or_else(|| Error::NotCaptured(vif.to_owned()))?;
        Ok(report(recording.end(Instant::now() + PATIENCE)))
    }

    /// Waits until the rest of all captures is written, after the workers have ended.
    pub(super) fn end_captures(&self) {
        let until = Instant::now() + PATIENCE;
        for (_, recording) in self.captures().drain() {
            // There is no client for the report.
            recording.end(until);
        }
    }

    pub(super) fn captures(&self) -> MutexGuard<'_, HashMap<String, Recording>> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A report for clients.
pub(super) fn report(Report { frames, bytes, left_out, ended }: Report) -> CaptureReport {
    CaptureReport { frames, bytes, left_out, ended }
}
