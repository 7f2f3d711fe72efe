//! Client and server with each other, and each with peers that break the rules.

#![forbid(unsafe_code)]

mod client;
mod fixture;
mod hostile;
mod patterns;
