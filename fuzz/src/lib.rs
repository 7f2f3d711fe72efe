//! What fuzz targets share.

mod edits;
mod steps;

pub use edits::edit;
pub use steps::{Conversation, STEP, check};
