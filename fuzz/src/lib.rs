//! Code shared by the fuzz targets.

mod edits;
mod message;
mod steps;
mod words;

pub use edits::edit;
pub use message::Message;
pub use steps::{Conversation, STEP, check};
pub use words::{named, text};
