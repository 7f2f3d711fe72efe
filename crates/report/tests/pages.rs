//! Pages and text of a realistic result.
#![forbid(unsafe_code)]

mod sample;

use std::path::Path;

use fairlane_report::{ResultFile, text};

#[test]
fn writes_a_result_and_its_page() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
    let result = sample::demo();
    result.write(&dir).unwrap();
    assert_eq!(ResultFile::read(&dir).unwrap(), result);
    println!("{}", text::summary(&result));
}
