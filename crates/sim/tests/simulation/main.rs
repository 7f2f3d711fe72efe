//! Simulations of small scenarios: what arrives, who gets what, and that nothing is unaccounted for.

mod one_host;
mod support;
