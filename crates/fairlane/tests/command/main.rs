//! The command as a user meets it: arguments in; text, exit status and files out.

#![forbid(unsafe_code)]

mod check;
mod ctl;
mod paper;
mod place;
mod top;
mod up;
