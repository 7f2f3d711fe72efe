//! A frontend in service: its queues, its event channels, and what its driver takes.

use super::error::Rejection;
use super::host::{Events, Host};
use super::receive::{Receive, Takes};
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

/// A queue in service.
pub(super) struct Queue {
    pub transmit: Transmit,
    pub receive: Receive,
    /// The channels' numbers here.
    channels: [u32; 2],
}

/// A frontend in service. Dropping it unmaps its pages and closes its channels.
pub struct Link {
    domain: u16,
    pub(super) queues: Vec<Queue>,
    events: Box<dyn Events>,
}

impl Link {
    /// Maps the rings of a frontend and binds its channels. Rings go on where they stand.
    ///
    /// # Errors
    /// What the frontend wrote is not there, or not for this domain.
    pub fn open(host: Arc<dyn Host>, domain: u16, queues: &[QueueSetup], takes: Takes) -> Result<Link, Rejection> {
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
        for QueueSetup { rings: [transmit, receive], channels: [told, asked] } in queues {
            let transmit = Ring::new(map(*transmit)?)?;
            let receive = Ring::new(map(*receive)?)?;
            let told_here = bind(*told)?;
            let channels = [told_here, if asked == told { told_here } else { bind(*asked)? }];
            opened.push(Queue {
                transmit: Transmit::new(transmit, domain, host.clone()),
                receive: Receive::new(receive, domain, host.clone(), takes),
                channels,
            });
        }
        let mut link = Link { domain, queues: opened, events };
        // Whatever waits was perhaps announced to a backend that is gone, and so are responses that it owed.
        for queue in &mut link.queues {
            queue.transmit.enable_notifications();
            queue.channels.iter().for_each(|channel| link.events.notify(*channel));
        }
        Ok(link)
    }

    /// Whose it is.
    pub(super) fn domain(&self) -> u16 {
        self.domain
    }

    /// Publishes everything answered, and tells the frontend where it wants that.
    pub(super) fn flush(&mut self) {
        for queue in &mut self.queues {
            let told = [queue.transmit.publish(), queue.receive.publish()];
            let [transmit, receive] = queue.channels;
            if told[0] || (told[1] && transmit == receive) {
                self.events.notify(transmit);
            }
            if told[1] && transmit != receive {
                self.events.notify(receive);
            }
        }
    }

    pub(super) fn take_events(&mut self) {
        self.events.take();
    }

    /// Has its events wake the worker again.
    pub(super) fn listen(&mut self) {
        self.events.listen();
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }
}
