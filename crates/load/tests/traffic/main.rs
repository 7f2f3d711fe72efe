//! Client and server against each other, and each against those who break the rules.

#![forbid(unsafe_code)]

mod client;
mod hostile;
mod patterns;
mod place;
