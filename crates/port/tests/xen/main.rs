//! The Xen vif without Xen: its rings, frontends that break the rules, and the talk over xenstore.

mod advisories;
mod frames;
mod hostile;
mod netfront;
mod states;
mod xenstored;
