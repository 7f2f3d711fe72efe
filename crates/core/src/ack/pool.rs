//! Retained copies: the bytes of each flow in a chain of blocks of fixed size.
//!
//! The memory is the caller's, so that it may outlive the process. Blocks link by number, never by address, and hold
//! only numbers and bytes. A block has its owner and its range of bytes, which are valid after every single store
//! (fences keep the order), so the chains of a killed process can be [rebuilt](Pool::join) from the blocks alone.

use super::extent::InUse;
use super::sequence::Seq;
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes of payload in a block.
pub const BLOCK: usize = 2032;

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// A block of the pool, 2 KiB. Every bit pattern is a block, though perhaps not a consistent one.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct Block {
    /// The next block of the chain or of the free list.
    next: u32,
    /// The number of the owning flow; [`NONE`] if the block is free.
    owner: u32,
    /// The sequence number of the first byte.
    sequence: Seq,
    /// Bytes in use.
    len: u32,
    bytes: [u8; BLOCK],
}

impl Block {
    /// A free block.
    pub const FREE: Block = Block { next: NONE, owner: NONE, sequence: Seq(0), len: 0, bytes: [0; BLOCK] };

    /// The sequence number after the last byte.
    fn end(&self) -> Seq {
        self.sequence.plus(self.len)
    }
}

/// The first and last block of a flow; both are [`NONE`] or neither is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Chain {
    first: u32,
    last: u32,
}

impl Chain {
    /// A chain without blocks.
    pub(super) const EMPTY: Chain = Chain { first: NONE, last: NONE };
}

impl Default for Chain {
    fn default() -> Chain {
        Chain::EMPTY
    }
}

/// All blocks.
pub(super) struct Pool<'m> {
    blocks: InUse<'m, Block>,
    /// Head of the free list.
    free: u32,
    /// Length of the free list.
    count: usize,
}

impl<'m> Pool<'m> {
    /// A pool with an empty free list, whatever the blocks hold. The caller [joins](Pool::join) the blocks to keep,
    /// then [frees](Pool::sweep) the rest.
    pub(super) fn new(blocks: &'m mut [Block], usable: usize) -> Pool<'m> {
        Pool { blocks: InUse::new(blocks, usable.min(NONE as usize)), free: NONE, count: 0 }
    }

    /// Puts more blocks into use, up to `usable` in total.
    pub(super) fn grow(&mut self, usable: usize) {
        let before = self.blocks.grow(usable.min(NONE as usize));
        for index in (before..self.blocks.len()).rev() {
            self.put_free(index as u32);
        }
    }

    /// The number of free blocks.
    #[inline]
    pub(super) fn free_blocks(&self) -> usize {
        self.count
    }

    /// Frees every block that is not marked in `kept`.
    pub(super) fn sweep(&mut self, kept: &[bool]) {
        for index in (0..self.blocks.len()).rev() {
            if !kept.get(index).is_some_and(|kept| *kept) {
                self.put_free(index as u32);
            }
        }
    }

    /// The number of blocks in use or free.
    pub(super) fn len(&self) -> usize {
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

    /// Appends bytes that start at `seq`, which is the end of the chain if it is not empty. Returns false and changes
    /// nothing if the pool has no room for all of them.
    pub(super) fn append(&mut self, owner: u32, chain: &mut Chain, seq: Seq, mut bytes: &[u8]) -> bool {
        let room = if chain.last == NONE { 0 } else { BLOCK - self.blocks[chain.last as usize].len as usize };
        if bytes.len().saturating_sub(room).div_ceil(BLOCK) > self.count {
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
            // If the process ends here, the copied bytes do not count yet.
            compiler_fence(Ordering::Release);
            block.len = (filled + take) as u32;
            compiler_fence(Ordering::Release);
            seq = seq.plus(take as u32);
            bytes = &bytes[take..];
        }
        true
    }

    /// Adds an empty block to a chain. The caller checked that one is free.
    fn extend(&mut self, owner: u32, chain: &mut Chain, sequence: Seq) {
        let index = self.free;
        let block = &mut self.blocks[index as usize];
        self.free = block.next;
        self.count -= 1;
        (block.next, block.sequence, block.len) = (NONE, sequence, 0);
        // At any moment `len` is right for a block with an owner.
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

    /// The rest of a chain without the leading blocks that end at or before `seq`.
    pub(super) fn rest_after(&self, chain: Chain, seq: Seq) -> Chain {
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

    /// Frees the blocks of a chain before those of `kept`, which the flow has stored as its chain already: a process
    /// that ends in between leaves no flow with a freed block.
    pub(super) fn free(&mut self, chain: Chain, kept: Chain) {
        compiler_fence(Ordering::Release);
        let mut index = chain.first;
        while index != NONE && index != kept.first {
            let next = self.blocks[index as usize].next;
            self.put_free(index);
            index = next;
        }
    }

    /// Appends up to `len` bytes of a chain, starting at `from`, to `out`.
    pub(super) fn copy(&self, chain: Chain, from: Seq, len: usize, out: &mut Vec<u8>) {
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

    /// The blocks in memory that have an owner, as sorted pairs of owner and block.
    pub(super) fn owned(&self) -> Vec<(u32, u32)> {
        let owner = |(index, block): (usize, &Block)| (block.owner != NONE).then_some((block.owner, index as u32));
        let mut owned: Vec<_> = self.blocks.iter().enumerate().filter_map(owner).collect();
        owned.sort_unstable();
        owned
    }

    /// Rebuilds a chain from a flow's blocks in memory: the first block with bytes after `from`, and the contiguous
    /// blocks that follow. Returns the chain and the sequence numbers of its start and end.
    pub(super) fn join(&mut self, owned: &[(u32, u32)], from: Seq) -> Option<(Chain, Seq, Seq)> {
        let block = |&(_, index): &(u32, u32)| (&self.blocks[index as usize], index);
        let is_valid = |(block, _): &(&Block, u32)| (1..=BLOCK as u32).contains(&block.len) && block.end().after(from);
        let mut found: Vec<(Seq, Seq, u32)> = owned
            .iter()
            .map(block)
            .filter(is_valid)
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
    pub(super) fn keep(&self, chain: Chain, kept: &mut [bool]) {
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
                    let kept = pool.rest_after(chain, begin);
                    pool.free(chain, kept);
                    chain = kept;
                }
                let mut out = Vec::new();
                pool.copy(chain, begin, model.len(), &mut out);
                prop_assert_eq!(&out, &model);
                let used = pool.len() - pool.count;
                prop_assert!(used * BLOCK < model.len() + 2 * BLOCK);
                // If the process ends here, the chain can be rebuilt.
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
