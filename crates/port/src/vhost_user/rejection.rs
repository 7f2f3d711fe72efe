//! Why a frontend's message is turned away, and the frontend with it.

use crate::notifier;
use crate::virtqueue::{LogError, RegionError, Violation};
use std::io;
use thiserror::Error;
use vhost::vhost_user::message::FrontendReq;

/// What is wrong with a message, or with what it asks for.
#[derive(Debug, Error)]
pub enum Rejection {
    /// A payload that ends too early.
    #[error("{request:?} with {have} bytes; it needs {needed} at least")]
    Short {
        /// What it asks for.
        request: FrontendReq,
        /// Bytes of its payload.
        have: usize,
        /// Bytes that it needs.
        needed: usize,
    },
    /// No message of a feature that is offered.
    #[error("{0:?} belongs to a feature that was not offered")]
    Request(FrontendReq),
    /// Features beyond those offered, as bits.
    #[error("features {0:#x} were taken that were not offered")]
    Features(u64),
    /// A driver of before virtio 1.0.
    #[error("the driver does not take VIRTIO_F_VERSION_1; only virtio 1.0 and later is served")]
    Legacy,
    /// A message without what it is for.
    #[error("{0:?} without a descriptor")]
    NoDescriptor(FrontendReq),
    /// The same of a ring's.
    #[error("{request:?} for ring {index} without a descriptor")]
    NoRingDescriptor {
        /// What it asks for.
        request: FrontendReq,
        /// The ring.
        index: usize,
    },
    /// A descriptor that cannot be notified, or that cannot notify.
    #[error(transparent)]
    Notifier(#[from] notifier::Error),
    /// A table that has other than a descriptor a region.
    #[error("SET_MEM_TABLE of {regions} regions with {files} descriptors")]
    Table {
        /// Regions.
        regions: usize,
        /// Descriptors.
        files: usize,
    },
    /// A region that is not there, by the guest's address.
    #[error("REM_MEM_REG of {0:#x}, where there is no such region")]
    NoRegion(u64),
    /// A region that cannot be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A log that cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A ring that the device does not have.
    #[error("a ring beyond the {0} that the device has")]
    NoRing(usize),
    /// A ring that breaks a rule.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// A kick that cannot be waited for.
    #[error("the kick of ring {index}: {error}")]
    Kick {
        /// The ring.
        index: usize,
        /// What the system says.
        error: io::Error,
    },
}
