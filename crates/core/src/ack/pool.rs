//! Retained copies: the bytes of each flow in a chain of blocks of one size.
//!
//! The memory is the caller's, so that it may outlive the process. Blocks name each other by number, never by address, and
//! all that is in one is a number or a byte. A block says whose it is and which bytes it has, and that is true after every single store
//! (the fences keep their order), so the chains of a process that was killed are [made anew](Pool::join) from the blocks alone.

use super::extent::Part;
use super::sequence::Seq;
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes of payload in a block.
pub const BLOCK: usize = 2032;

/// Stands for "no block".
pub const NONE: u32 = u32::MAX;

/// A block of the pool, of 2 KiB. Every pattern of bits in it is a block, if perhaps no right one.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct Block {
    /// The next block of the chain, or of the free ones.
    next: u32,
    /// The number of the flow whose it is; [`NONE`] if it is free.
    owner: u32,
    /// The number of the first byte.
    sequence: Seq,
    /// Bytes that are filled.
    len: u32,
    bytes: [u8; BLOCK],
}

impl Block {
    /// A free block.
    pub const FREE: Block = Block { next: NONE, owner: NONE, sequence: Seq(0), len: 0, bytes: [0; BLOCK] };

    /// The number behind the last byte.
    fn end(&self) -> Seq {
        self.sequence.plus(self.len)
    }
}

/// A flow's blocks, first and last; both are [`NONE`] or neither is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Chain {
    first: u32,
    last: u32,
}

impl Chain {
    /// No block.
    pub const EMPTY: Chain = Chain { first: NONE, last: NONE };
}

impl Default for Chain {
    fn default() -> Chain {
        Chain::EMPTY
    }
}

/// All blocks.
pub struct Pool<'m> {
    blocks: Part<'m, Block>,
    free: u32,
    count: usize,
}

impl<'m> Pool<'m> {
    /// A pool none of whose blocks is used yet, whatever is in them. Those to be kept are [joined](Pool::join) next, and then
    /// the rest is [freed](Pool::sweep).
    pub fn new(blocks: &'m mut [Block], usable: usize) -> Pool<'m> {
        Pool { blocks: Part::new(blocks, usable.min(NONE as usize)), free: NONE, count: 0 }
    }

    /// Takes more blocks into use, up to `usable` in all.
    pub fn grow(&mut self, usable: usize) {
        let before = self.blocks.grow(usable.min(NONE as usize));
        for index in (before..self.blocks.len()).rev() {
            self.put_free(index as u32);
        }
    }

    /// Blocks that are free.
    #[inline]
    pub fn free_blocks(&self) -> usize {
        self.count
    }

    /// Frees every block that `kept` does not say is a flow's.
    pub fn sweep(&mut self, kept: &[bool]) {
        for index in (0..self.blocks.len()).rev() {
            if !kept.get(index).is_some_and(|kept| *kept) {
                self.put_free(index as u32);
            }
        }
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    fn put_free(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.owner = NONE;
        compiler_fence(Ordering::Release);
        block.next = self.free;
        self.free = index;
        self.count += 1;
    }

    /// Appends bytes that begin at `seq`, where the chain ends if it is not empty. False, and nothing done, if the pool has
    /// no room for all.
    pub fn append(&mut self, owner: u32, chain: &mut Chain, seq: Seq, mut bytes: &[u8]) -> bool {
        let left = if chain.last == NONE { 0 } else { BLOCK - self.blocks[chain.last as usize].len as usize };
        if bytes.len().saturating_sub(left).div_ceil(BLOCK) > self.count {
            return false;
        }
        let mut seq = seq;
        while !bytes.is_empty() {
            if chain.last == NONE || self.blocks[chain.last as usize].len as usize == BLOCK {
                self.extend(owner, chain, seq);
            }
            let block = &mut self.blocks[chain.last as usize];
            let filled = block.len as usize;
            let take = bytes.len().min(BLOCK - filled);
            block.bytes[filled..filled + take].copy_from_slice(&bytes[..take]);
            // A process that ends here has copied bytes that nobody counts yet.
            compiler_fence(Ordering::Release);
            block.len = (filled + take) as u32;
            compiler_fence(Ordering::Release);
            seq = seq.plus(take as u32);
            bytes = &bytes[take..];
        }
        true
    }

    /// Adds an empty block to a chain. One is free.
    fn extend(&mut self, owner: u32, chain: &mut Chain, sequence: Seq) {
        let index = self.free;
        let block = &mut self.blocks[index as usize];
        self.free = block.next;
        self.count -= 1;
        (block.next, block.sequence, block.len) = (NONE, sequence, 0);
        // A block with an owner has as many bytes of its as it says, at any moment.
        compiler_fence(Ordering::Release);
        block.owner = owner;
        compiler_fence(Ordering::Release);
        if chain.last == NONE {
            chain.first = index;
        } else {
            self.blocks[chain.last as usize].next = index;
        }
        chain.last = index;
    }

    /// What is left of a chain without the blocks all of whose bytes come before `seq`.
    pub fn behind(&self, chain: Chain, seq: Seq) -> Chain {
        let mut first = chain.first;
        while first != NONE {
            let block = &self.blocks[first as usize];
            if block.end().after(seq) {
                return Chain { first, last: chain.last };
            }
            first = block.next;
        }
        Chain::EMPTY
    }

    /// Frees the blocks of a chain that come before those of `kept`, which its flow says is its chain by now: a process
    /// that ends half-way leaves no flow with a freed block.
    pub fn free(&mut self, chain: Chain, kept: Chain) {
        compiler_fence(Ordering::Release);
        let mut index = chain.first;
        while index != NONE && index != kept.first {
            let next = self.blocks[index as usize].next;
            self.put_free(index);
            index = next;
        }
    }

    /// Appends to `out` the bytes of a chain from `from` on, `len` at most.
    pub fn copy(&self, chain: Chain, from: Seq, len: usize, out: &mut Vec<u8>) {
        let mut left = len;
        let mut index = chain.first;
        while index != NONE && left > 0 {
            let block = &self.blocks[index as usize];
            if block.end().after(from) {
                let skip = block.sequence.room(from) as usize;
                let bytes = &block.bytes[skip..block.len as usize];
                let take = bytes.len().min(left);
                out.extend_from_slice(&bytes[..take]);
                left -= take;
            }
            index = block.next;
        }
    }

    /// The blocks that were found in memory with an owner, by owner: (owner, block).
    pub fn owned(&self) -> Vec<(u32, u32)> {
        let owner = |(index, block): (usize, &Block)| (block.owner != NONE).then_some((block.owner, index as u32));
        let mut owned: Vec<_> = self.blocks.iter().enumerate().filter_map(owner).collect();
        owned.sort_unstable();
        owned
    }

    /// Makes a chain of a flow's blocks that were found in memory: of those that have bytes behind `from` the first, and what
    /// goes on where it ends. Returns it and the numbers where its bytes begin and end.
    pub fn join(&mut self, owned: &[(u32, u32)], from: Seq) -> Option<(Chain, Seq, Seq)> {
        let block = |&(_, index): &(u32, u32)| (&self.blocks[index as usize], index);
        let is_sound = |(block, _): &(&Block, u32)| (1..=BLOCK as u32).contains(&block.len) && block.end().after(from);
        let mut found: Vec<(Seq, Seq, u32)> = owned
            .iter()
            .map(block)
            .filter(is_sound)
            .map(|(block, index)| (block.sequence, block.end(), index))
            .collect();
        found.sort_unstable_by_key(|(begin, ..)| begin.since(from).cast_signed());
        let &(start, mut end, first) = found.first()?;
        let mut last = first;
        for &(begin, until, index) in &found[1..] {
            if begin != end {
                break;
            }
            self.blocks[last as usize].next = index;
            (end, last) = (until, index);
        }
        self.blocks[last as usize].next = NONE;
        Some((Chain { first, last }, start, end))
    }

    /// Marks the blocks of a chain in `kept`.
    pub fn keep(&self, chain: Chain, kept: &mut [bool]) {
        let mut index = chain.first;
        while index != NONE {
            kept[index as usize] = true;
            index = self.blocks[index as usize].next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_chain_is_a_queue_of_bytes(start: u32, steps in proptest::collection::vec((any::<bool>(), 0usize..5000), 1..60)) {
            let mut memory = vec![Block::FREE; 16];
            let mut pool = Pool::new(&mut memory, 16);
            pool.sweep(&[]);
            let (mut chain, mut begin, mut model) = (Chain::EMPTY, Seq(start), Vec::new());
            for (step, (append, len)) in steps.into_iter().enumerate() {
                let end = begin.plus(model.len() as u32);
                if append {
                    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + step) as u8).collect();
                    let count = pool.count;
                    if pool.append(3, &mut chain, end, &bytes) {
                        model.extend(bytes);
                    } else {
                        prop_assert_eq!(count, pool.count);
                        prop_assert!(len + model.len() + 2 * BLOCK > 16 * BLOCK);
                    }
                } else {
                    let taken = len.min(model.len());
                    model.drain(..taken);
                    begin = begin.plus(taken as u32);
                    let kept = pool.behind(chain, begin);
                    pool.free(chain, kept);
                    chain = kept;
                }
                let mut out = Vec::new();
                pool.copy(chain, begin, model.len(), &mut out);
                prop_assert_eq!(&out, &model);
                let used = pool.len() - pool.count;
                prop_assert!(used * BLOCK < model.len() + 2 * BLOCK);
                // A process that ends here leaves all that is needed to find them again.
                let mut kept = [false; 16];
                let owned = pool.owned();
                let found = pool.join(&owned, begin);
                prop_assert_eq!(found.is_some(), !model.is_empty());
                if let Some((found, from, to)) = found {
                    prop_assert_eq!((found, to), (chain, begin.plus(model.len() as u32)));
                    prop_assert!(!from.after(begin));
                    pool.keep(found, &mut kept);
                    prop_assert_eq!(kept.iter().filter(|kept| **kept).count(), used);
                }
            }
            pool.free(chain, Chain::EMPTY);
            prop_assert_eq!(pool.count, 16);
        }
    }
}
