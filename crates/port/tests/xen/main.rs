//! Tests of the Xen vif without Xen: its rings, frontends that break the rules, and the dialogue over xenstore.
#![allow(clippy::disallowed_methods)] // these files are the guest's and the hypervisor's side

mod advisories;
mod frames;
mod hostile;
mod netfront;
mod states;
mod xenstored;
