//! Why a frontend's message, and with it the frontend, is rejected.

use super::queues;
use crate::notifier;
use crate::virtqueue::{LogError, RegionError, Violation};
use std::io;
use thiserror::Error;
use vhost::vhost_user::message::FrontendReq;

/// What is wrong with a message or its request.
#[derive(Debug, Error)]
pub(super) enum Rejection {
    /// A payload that is too short.
    #[error("{request:?} with {have} bytes; it needs {needed} at least")]
    Short {
        /// The request.
        request: FrontendReq,
        /// Bytes of its payload.
        have: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A request of a feature that is not offered.
    #[error("{0:?} belongs to a feature that was not offered")]
    Request(FrontendReq),
    /// Features beyond those offered, as bits.
    #[error("features {0:#x} were acknowledged that were not offered")]
    Features(u64),
    /// A driver older than virtio 1.0.
    #[error("the driver does not acknowledge VIRTIO_F_VERSION_1; only virtio 1.0 and later is served")]
    Legacy,
    /// An impossible MTU.
    #[error("an MTU of {0}; it must be 68 to 65535")]
    Mtu(u64),
    /// A message without its descriptor.
    #[error("{0:?} without a descriptor")]
    NoDescriptor(FrontendReq),
    /// A message about a ring without its descriptor.
    #[error("{request:?} for ring {index} without a descriptor")]
    NoRingDescriptor {
        /// The request.
        request: FrontendReq,
        /// The ring.
        index: usize,
    },
    /// A descriptor that cannot be used as a notifier.
    #[error(transparent)]
    Notifier(#[from] notifier::Error),
    /// A table whose number of descriptors is not that of its regions.
    #[error("SET_MEM_TABLE of {regions} regions with {files} descriptors")]
    Table {
        /// Regions.
        regions: usize,
        /// Descriptors.
        files: usize,
    },
    /// No region at this guest address.
    #[error("REM_MEM_REG of {0:#x}, where there is no such region")]
    NoRegion(u64),
    /// A region that cannot be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A log that cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A ring index beyond the device's rings.
    #[error("a ring beyond the {0} that the device has")]
    NoRing(usize),
    /// A ring that breaks a rule of virtio.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// A ring that cannot run.
    #[error(transparent)]
    Queue(#[from] queues::Error),
    /// A kick descriptor that cannot be watched.
    #[error("the kick of ring {index}: {error}")]
    Kick {
        /// The ring.
        index: usize,
        /// The system's error.
        error: io::Error,
    },
}
