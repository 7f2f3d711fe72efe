//! vhost-user messages, decoded from an input.

use std::os::fd::RawFd;

/// A message, mostly with valid flags, mostly a known request.
pub struct Message<'a> {
    pub request: u32,
    pub flags: u32,
    pub payload: &'a [u8],
    files: u8,
    /// Whether only the payload is sent, without a header.
    pub raw: bool,
}

impl<'a> Message<'a> {
    /// Decodes the next message of an input: three bytes that describe it, and its payload.
    pub fn next(input: &mut &'a [u8]) -> Option<Message<'a>> {
        let (&[request, flags, shape], rest) = input.split_first_chunk()?;
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(shape >> 2) * 2));
        *input = rest;
        let raw = flags == 255;
        let flags = if flags & 0xf0 == 0xf0 { u32::from(flags) } else { 1 | u32::from(flags & 1) << 3 };
        Some(Message { request: u32::from(request % 48), flags, payload, files: shape & 3, raw })
    }

    /// The file descriptors that the message carries, chosen from these.
    pub fn files(&self, memory: RawFd, kick: RawFd) -> Vec<RawFd> {
        match self.files {
            0 => vec![],
            1 => vec![memory],
            2 => vec![kick],
            _ => vec![memory, kick, memory],
        }
    }
}
