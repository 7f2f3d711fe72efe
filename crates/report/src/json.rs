//! JSON text, formatted so that result files can be read, searched and compared by line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter};

/// The depth down to which each value has its own line: the file's keys and their direct elements.
const DEPTH: usize = 2;

/// The text in lines, with a final line end.
pub(crate) fn lines(value: &impl Serialize) -> String {
    text(value, Lines::default()) + "\n"
}

/// The text without white space.
pub(crate) fn compact(value: &impl Serialize) -> String {
    text(value, CompactFormatter)
}

fn text(value: &impl Serialize, formatter: impl Formatter) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
    // The only possible errors are those of the writer and of map keys that are no strings.
    value.serialize(&mut serializer).expect("a result is written to memory and has string keys only");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

#[derive(Default)]
struct Lines {
    depth: usize,
    filled: bool,
}

impl Lines {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        if self.filled && self.depth <= DEPTH {
            write!(writer, "\n{:1$}", "", 2 * (self.depth - 1))?;
        }
        self.depth -= 1;
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.filled = true;
        writer.write_all(if first { b"" } else { b"," })?;
        match self.depth {
            depth if depth <= DEPTH => write!(writer, "\n{:1$}", "", 2 * depth),
            _ if first => Ok(()),
            _ => writer.write_all(b" "),
        }
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
