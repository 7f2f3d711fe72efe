//! A connected frontend: its queues, its event channels, and its driver's features.

use super::error::Rejection;
use super::host::{Events, Host};
use super::receive::{FrontendFeatures, Receive};
use super::ring::Ring;
use super::transmit::Transmit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where a queue is, as the frontend wrote it in xenstore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSetup {
    /// Grant references of the ring pages: tx-ring-ref and rx-ring-ref.
    pub rings: [u32; 2],
    /// Event channels of both: event-channel-tx and event-channel-rx, or event-channel twice.
    pub channels: [u32; 2],
}

/// A running queue.
pub(super) struct Queue {
    pub transmit: Transmit,
    pub receive: Receive,
    /// The channels' local numbers.
    channels: [u32; 2],
}

/// A connected frontend. Dropping it unmaps its pages and closes its channels.
pub struct Link {
    domain: u16,
    pub(super) queues: Vec<Queue>,
    events: Box<dyn Events>,
}

impl Link {
    /// Maps the rings of a frontend and binds its channels. Rings resume where they stopped.
    ///
    /// # Errors
    /// What the frontend wrote does not exist, or is not for this domain.
    pub fn open(
        host: Arc<dyn Host>,
        domain: u16,
        queues: &[QueueSetup],
        features: FrontendFeatures,
    ) -> Result<Link, Rejection> {
        let events = host.events().map_err(Rejection::NoEvents)?;
        let map = |reference| {
            let page = host.map(domain, reference);
            page.map_err(|error| Rejection::Page { domain, reference, error })
        };
        let bind = |channel| {
            let bound = events.bind(domain, channel);
            bound.map_err(|error| Rejection::Channel { domain, channel, error })
        };
        let mut opened = Vec::with_capacity(queues.len());
        for QueueSetup { rings: [transmit, receive], channels: [transmit_channel, receive_channel] } in queues {
            let transmit = Ring::new(map(*transmit)?)?;
            let receive = Ring::new(map(*receive)?)?;
            let transmit_here = bind(*transmit_channel)?;
            let channels = [
                transmit_here,
                if receive_channel == transmit_channel { transmit_here } else { bind(*receive_channel)? },
            ];
            opened.push(Queue {
                transmit: Transmit::new(transmit, domain, host.clone()),
                receive: Receive::new(receive, domain, host.clone(), features),
                channels,
            });
        }
        let mut link = Link { domain, queues: opened, events };
        // Waiting requests may have been announced to a backend that is gone, which may also have owed notifications.
        for queue in &mut link.queues {
            queue.transmit.enable_notifications();
            queue.channels.iter().for_each(|channel| link.events.notify(*channel));
        }
        Ok(link)
    }

    /// The guest's domain.
    pub(super) fn domain(&self) -> u16 {
        self.domain
    }

    /// Publishes all responses, and notifies the frontend where it asks for that.
    pub(super) fn flush(&mut self) {
        for queue in &mut self.queues {
            let notify = [queue.transmit.publish(), queue.receive.publish()];
            let [transmit, receive] = queue.channels;
            if notify[0] || (notify[1] && transmit == receive) {
                self.events.notify(transmit);
            }
            if notify[1] && transmit != receive {
                self.events.notify(receive);
            }
        }
    }

    pub(super) fn mask_events(&mut self) {
        self.events.mask();
    }

    /// Lets events wake the worker again.
    pub(super) fn unmask_events(&mut self) {
        self.events.unmask();
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }
}
