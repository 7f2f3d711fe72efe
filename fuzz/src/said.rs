//! Messages of vhost-user as an input has them.

use std::os::fd::RawFd;

/// A message, mostly with right flags, mostly a known request.
pub struct Said<'a> {
    pub request: u32,
    pub flags: u32,
    pub payload: &'a [u8],
    files: u8,
    /// Whether the payload is all that is sent.
    pub raw: bool,
}

impl<'a> Said<'a> {
    /// Takes the next message of an input: three bytes that describe it, and its payload.
    pub fn next(input: &mut &'a [u8]) -> Option<Said<'a>> {
        let (&[request, flags, shape], rest) = input.split_first_chunk()?;
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(shape >> 2) * 2));
        *input = rest;
        let raw = flags == 255;
        let flags = if flags & 0xf0 == 0xf0 { u32::from(flags) } else { 1 | u32::from(flags & 1) << 3 };
        Some(Said { request: u32::from(request % 48), flags, payload, files: shape & 3, raw })
    }

    /// The descriptors that it carries, of these.
    pub fn files(&self, memory: RawFd, kick: RawFd) -> Vec<RawFd> {
        match self.files {
            0 => vec![],
            1 => vec![memory],
            2 => vec![kick],
            _ => vec![memory, kick, memory],
        }
    }
}
