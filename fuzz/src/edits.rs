//! Changes to bytes that were right.

/// Bytes of a change in an input.
const EDIT: usize = 4;

/// Changes bytes: each four of `edits` say where, in 16 bits, and add two bytes there.
pub fn edit(bytes: &mut [u8], edits: &[u8]) {
    for edit in edits.chunks_exact(EDIT) {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        for (at, add) in [(place, edit[2]), (place + 1, edit[3])] {
            let at = at % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = byte.wrapping_add(add);
            }
        }
    }
}
