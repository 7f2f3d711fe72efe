//! What fuzz targets share.

mod edits;
mod said;
mod steps;

pub use edits::edit;
pub use said::Said;
pub use steps::{Conversation, STEP, check};
