//! Differences between policies that need a restart.

use super::{Link, Policy, Uplink};
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A difference between two policies that needs a restart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fixed {
    /// Another control socket.
    #[error("control cannot change from {} to {} while running, restart to change it", .old.display(), .new.display())]
    Control {
        /// The present path.
        old: PathBuf,
        /// The new path.
        new: PathBuf,
    },
    /// Another read-only control socket.
    #[error("observe cannot change while running, restart to change it")]
    Observe,
    /// Another metrics address.
    #[error("metrics cannot change from {} to {} while running, restart to change it", or_none(.old), or_none(.new))]
    Metrics {
        /// The present address.
        old: Option<SocketAddr>,
        /// The new address.
        new: Option<SocketAddr>,
    },
    /// Another file with a token.
    #[error("metrics_token cannot change while running, restart to change it")]
    MetricsToken,
    /// A link at the end of a wire, or one that takes Xen's cards, was removed.
    #[error("link `{0}` has a wire or takes Xen's cards: it cannot be removed while running, restart to change it")]
    Removed(String),
    /// A link at the end of a wire, or one that takes Xen's cards, was added.
    #[error("link `{0}` has a wire or takes Xen's cards: it cannot be added while running, restart to change it")]
    Added(String),
    /// Another uplink.
    #[error(
        "the uplink of link `{link}` cannot change from {} to {} while running, restart to change it",
        shown(.old),
        shown(.new)
    )]
    Uplink {
        /// The link.
        link: String,
        /// The present uplink.
        old: Uplink,
        /// The new uplink.
        new: Uplink,
    },
    /// Another value of the link's `xen`.
    #[error("xen of link `{link}` cannot change from {} to {new} while running, restart to change it", !new)]
    Xen {
        /// The link.
        link: String,
        /// The new value.
        new: bool,
    },
    /// Another core for the worker.
    #[error(
        "cpu of link `{link}` cannot change from {} to {} while running, restart to change it",
        or_none(.old),
        or_none(.new)
    )]
    Cpu {
        /// The link.
        link: String,
        /// The present core.
        old: Option<usize>,
        /// The new core.
        new: Option<usize>,
    },
}

impl Policy {
    /// Every difference to a newer policy that needs a restart.
    pub(super) fn fixed(&self, newer: &Policy) -> Vec<Fixed> {
        let mut fixed = Vec::new();
        if self.control != newer.control {
            fixed.push(Fixed::Control { old: self.control.clone(), new: newer.control.clone() });
        }
        if self.metrics != newer.metrics {
            fixed.push(Fixed::Metrics { old: self.metrics, new: newer.metrics });
        }
        if self.metrics_token != newer.metrics_token {
            fixed.push(Fixed::MetricsToken);
        }
        if self.observe != newer.observe {
            fixed.push(Fixed::Observe);
        }
        for old in &self.links {
            let Some(new) = newer.link(&old.name) else {
                fixed.extend(self.is_bound(old).then(|| Fixed::Removed(old.name.clone())));
                continue;
            };
            let link = || old.name.clone();
            if old.uplink != new.uplink {
                fixed.push(Fixed::Uplink { link: link(), old: old.uplink.clone(), new: new.uplink.clone() });
            }
            if old.xen != new.xen {
                fixed.push(Fixed::Xen { link: link(), new: new.xen });
            }
            if old.cpu != new.cpu {
                fixed.push(Fixed::Cpu { link: link(), old: old.cpu, new: new.cpu });
            }
        }
        let added = newer.links.iter().filter(|new| self.link(&new.name).is_none());
        fixed.extend(added.filter(|new| newer.is_bound(new)).map(|new| Fixed::Added(new.name.clone())));
        fixed
    }

    /// Whether a link comes and goes only with the process: one at the end of a wire, or one that takes Xen's cards.
    fn is_bound(&self, link: &Link) -> bool {
        let leads_here = |other: &Link| matches!(&other.uplink, Uplink::Wire { to, .. } if *to == link.name);
        link.xen || matches!(link.uplink, Uplink::Wire { .. }) || self.links.iter().any(leads_here)
    }
}

/// A value that may be absent, as text for a message.
fn or_none(value: &Option<impl Display>) -> String {
    value.as_ref().map_or("none".to_owned(), ToString::to_string)
}

/// An uplink as text for a message.
fn shown(uplink: &Uplink) -> String {
    match uplink {
        Uplink::None => "none".to_owned(),
        Uplink::Tap { name } => format!("tap `{name}`"),
        Uplink::Card { name } => format!("card `{name}`"),
        Uplink::Xdp { name } => format!("card `{name}` by AF_XDP"),
        Uplink::Wire { to, delay, queue, backpressure } => {
            let (delay, queue) = (super::units::format_duration(*delay), super::units::format_size(*queue));
            format!("a wire to `{to}` (delay {delay}, queue {queue}, backpressure {backpressure})")
        }
    }
}
