//! Captures of vifs' frames: started and stopped by control clients, recorded by workers, written by threads of their own.
//! A successor goes on with the files.

use super::{Error, Shared, create};
use crate::bridge::Bridge;
use crate::confinement::{self, Kind};
use crate::control::{CaptureReport, StartCapture};
use fairlane_policy::{Policy, Vif};
use fairlane_port::capture::{self, Recording, Report};
use fairlane_port::keeper::Keeper;
use fairlane_port::store;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Default limit of a capture's file, in bytes.
const LIMIT: u64 = 1 << 30;

/// How long to wait for the rest of a capture to be written.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a successor's guests wait for the rest of captures to be written.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);

/// The captures of all vifs that run, by vif.
pub(super) type Captures = HashMap<String, Recording>;

/// The entry of a vif's capture in the store. To be changed with the format of what is left.
fn entry(vif: &str) -> String {
    format!("capture {vif}")
}

/// Leaves all captures to a successor, after the workers rest. What is returned is to be held until that one has them.
pub(super) fn leave(captures: &Captures) -> Vec<Arc<Keeper>> {
    let until = Instant::now() + SHORT_PATIENCE;
    let leave = |(vif, recording): (&String, &Recording)| match recording.leave(until) {
        Ok(keeper) => {
            let keeper = Arc::new(keeper);
            store::leave(&entry(vif), &keeper);
            Some(keeper)
        }
        Err(error) => {
            tracing::warn!("the capture of vif `{vif}` is not handed over: {error}");
            None
        }
    };
    captures.iter().filter_map(leave).collect()
}

/// Goes on with the captures that the former process left, before the workers start.
pub(super) fn go_on(policy: &Policy, bridges: &mut [&mut Bridge]) -> Captures {
    let mut captures = Captures::new();
    for Vif { name, .. } in &policy.vifs {
        let Some(left) = store::left(&entry(name)) else { continue };
        let found = bridges.iter_mut().find_map(|bridge| Some((bridge.find(name)?, bridge)));
        match (found, capture::go_on(left, || confinement::enter(Kind::Control))) {
            (Some((port, bridge)), Ok((recorder, recording))) => {
                bridge.start_capture(port, recorder);
                captures.insert(name.clone(), recording);
            }
            (None, _) => {}
            (_, Err(error)) => tracing::warn!("the capture of vif `{name}` ends: {error}"),
        }
    }
    captures
}

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
        let worker = self.worker_of(vif);
        let name = vif.to_owned();
        let mut captures = self.captures();
        match worker {
            Ok(worker) => worker.call(move |work| {
                if let Some((bridge, port)) = work.vif(&name) {
                    work.bridges[bridge].stop_capture(port);
                }
            })?,
            // The vif was removed, and its end of the capture with it.
            Err(_) if captures.contains_key(vif) => {}
            Err(unknown) => return Err(unknown),
        }
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

    pub(super) fn captures(&self) -> MutexGuard<'_, Captures> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A report for clients.
pub(super) fn report(Report { frames, bytes, left_out, ended }: Report) -> CaptureReport {
    CaptureReport { frames, bytes, left_out, ended }
}
