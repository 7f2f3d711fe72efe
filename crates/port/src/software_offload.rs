//! Completes checksums and segments large frames in software, for receivers that accept only frames as they appear on a
//! wire.

use crate::Frame;
use fairlane_core::packet::{Checksum, Error, Segments, checksum};

/// Buffers, reused for all frames.
#[derive(Default)]
pub struct SoftwareOffload {
    whole: Vec<u8>,
    segment: Vec<u8>,
}

impl SoftwareOffload {
    /// Completes `frame` and passes the result to `take`: one frame, or all segments of a frame to be segmented. Stops
    /// at the first frame that `take` refuses and returns its reason.
    ///
    /// # Errors
    /// The frame does not match its offload; nothing was passed to `take` then.
    pub fn each<E>(
        &mut self,
        frame: &Frame<'_>,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, Error> {
        let SoftwareOffload { whole, segment } = self;
        whole.clear();
        frame.read(whole);
        let offload = frame.offload();
        if let Some(gso) = offload.gso {
            let mut segments = Segments::new(whole, gso)?;
            while segments.write_next(segment) {
                if let Err(reason) = take(segment) {
                    return Ok(Err(reason));
                }
            }
            return Ok(Ok(()));
        }
        if let Checksum::Partial { start, offset } = offload.checksum {
            checksum::complete(whole, start, offset)?;
        }
        Ok(take(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Burst;
    use fairlane_core::packet::{Gso, GsoKind, Offload};
    use proptest::prelude::*;

    const HEADERS: usize = 54;

    /// A TCP frame over IPv4 whose TCP checksum field holds the sum of the pseudo-header only.
    fn tcp(payload: &[u8]) -> Vec<u8> {
        let length = (20 + payload.len()) as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((20 + length).to_be_bytes());
        frame.extend([0, 9, 0, 0, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
        let sum = checksum::Sum::default().with(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend([0, 80, 2, 188, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 1, 0]);
        let pseudo = checksum::Sum::default().with(&frame[26..34]).with(&[0, 6]).with(&length.to_be_bytes());
        frame.extend(pseudo.folded().to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame
    }

    /// The frames that a frame turns into, of which `limit` are taken.
    fn each(frame: &[u8], offload: Offload, limit: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut burst = Burst::new();
        let mut filler = burst.fill();
        filler.push(frame, offload);
        let mut taken = Vec::new();
        let outcome = SoftwareOffload::default().each(&filler.done().frame(0), |bytes| {
            if taken.len() == limit {
                return Err("enough");
            }
            taken.push(bytes.to_vec());
            Ok(())
        })?;
        assert_eq!(outcome.is_err(), taken.len() == limit);
        Ok(taken)
    }

    proptest! {
        #[test]
        fn checksums_and_segmentation_are_completed(payload in prop::collection::vec(any::<u8>(), 0..5000), size in prop::option::of(1..2000u16)) {
            let checksum = Checksum::Partial { start: 34, offset: 16 };
            let gso = size.map(|size| Gso { kind: GsoKind::Tcp4, ecn: false, size, header: HEADERS as u16 });
            let frames = each(&tcp(&payload), Offload { checksum, gso }, usize::MAX).unwrap();
            for frame in &frames {
                prop_assert_eq!(checksum::verify(frame), Ok(true));
                prop_assert!(frame.len() - HEADERS <= size.map_or(payload.len(), usize::from));
            }
            prop_assert_eq!(frames.iter().flat_map(|frame| &frame[HEADERS..]).copied().collect::<Vec<_>>(), payload);
        }
    }

    #[test]
    fn a_complete_frame_is_unchanged() {
        for checksum in [Checksum::Present, Checksum::Valid] {
            let frame = tcp(&[3; 300]);
            assert_eq!(each(&frame, Offload { checksum, gso: None }, usize::MAX), Ok(vec![frame]));
        }
    }

    #[test]
    fn a_receiver_may_refuse_later_segments() {
        let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 100, header: HEADERS as u16 });
        let offload = Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso };
        assert_eq!(each(&tcp(&[3; 1000]), offload, 4).unwrap().len(), 4);
    }

    #[test]
    fn a_frame_that_does_not_match_its_offload_is_refused() {
        let gso = Some(Gso { kind: GsoKind::Tcp6, ecn: false, size: 100, header: HEADERS as u16 });
        assert!(each(&tcp(&[3; 1000]), Offload { gso, ..Offload::default() }, 9).is_err());
        let checksum = Checksum::Partial { start: 340, offset: 16 };
        assert!(each(&tcp(&[3; 20]), Offload { checksum, gso: None }, 9).is_err());
    }
}
