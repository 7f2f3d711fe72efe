//! Changes to valid bytes.

/// Bytes of one change in an input.
const EDIT: usize = 4;

/// Changes bytes: each four bytes of `edits` are an offset of 16 bits and two bytes to add there.
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
