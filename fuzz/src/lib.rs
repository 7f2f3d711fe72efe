//! Code shared by the fuzz targets.

mod edits;
mod events;
mod message;
mod steps;
mod words;

pub use edits::edit;
pub use events::settle;
pub use message::Message;
pub use steps::{Conversation, STEP, check};
pub use words::{named, text};
