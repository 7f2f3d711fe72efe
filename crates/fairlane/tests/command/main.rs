//! The command as a user meets it: arguments in; text, exit status and files out.

#![forbid(unsafe_code)]

mod calls;
mod check;
mod confined;
mod ctl;
#[path = "../../../port/tests/frontend/mod.rs"]
mod frontend;
mod guests;
mod manager;
mod observer;
mod paper;
mod place;
mod top;
mod up;
