"""The random numbers of the report's bootstrap, so that an interval is the same number here and there.

``StdRng`` of Rust's crate rand 0.10 is ChaCha with 12 rounds (Bernstein, "ChaCha, a variant of Salsa20", 2008) and a
key from a 64-bit seed. All blocks are computed at once; only then is it fast enough in numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_WORDS = 16
_ROUNDS = 12
_COLUMNS_THEN_DIAGONALS = (
    ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


class Generator:
    """Random numbers from a seed, as ``StdRng::seed_from_u64`` gives them."""

    def __init__(self, seed: int) -> None:
        self._key = _key(seed)
        self._block = 0
        self._rest: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)

    def words(self, count: int) -> NDArray[np.uint32]:
        """The next words of 32 bits."""
        missing = max(0, count - len(self._rest))
        blocks = -(-missing // _WORDS)
        words: NDArray[np.uint32] = np.concatenate([self._rest, _blocks(self._key, self._block, blocks)])
        self._block += blocks
        self._rest = words[count:]
        return words[:count]

    def below(self, end: int, count: int) -> NDArray[np.intp]:
        """The next whole numbers from 0 to ``end - 1``, as ``random_range(0..end)`` gives them one by one.

        A word times ``end`` is the number and a fraction. Where the fraction is so high that numbers could be biased,
        one more word decides whether to round up (Canon's method).
        """
        parts = []
        while count > 0:
            words = self.words(count)
            products = words.astype(np.uint64) * np.uint64(end)
            fractions = products & np.uint64(0xFFFF_FFFF)
            biased = np.flatnonzero(fractions > (1 << 32) - end)
            taken = int(biased[0]) + 1 if len(biased) else count
            numbers = (products[:taken] >> np.uint64(32)).astype(np.intp)
            if len(biased):
                self._rest = np.concatenate([words[taken:], self._rest])
                more = int(self.words(1)[0]) * end >> 32
                numbers[-1] += int(fractions[taken - 1]) + more >> 32
            parts.append(numbers)
            count -= taken
        return np.concatenate(parts)


def _key(seed: int) -> list[int]:
    """Eight words by PCG32, as the crate rand_core makes them."""
    key = []
    for _ in range(8):
        seed = (seed * 0x5851_F42D_4C95_7F2D + 0xA176_54E4_6FBE_17F3) & _MASK
        shifted = (seed >> 18 ^ seed) >> 27 & 0xFFFF_FFFF
        turn = seed >> 59
        key.append((shifted >> turn | shifted << (32 - turn)) & 0xFFFF_FFFF)
    return key


def _blocks(key: list[int], first: int, count: int) -> NDArray[np.uint32]:
    """The words of blocks from number ``first`` on."""
    counter = np.arange(first, first + count, dtype=np.uint64)
    start = np.empty((_WORDS, count), dtype=np.uint32)
    start[:4] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    start[4:12] = np.array(key, dtype=np.uint32)[:, None]
    start[12] = counter & np.uint64(0xFFFF_FFFF)
    start[13] = counter >> np.uint64(32)
    start[14:] = 0
    state = start.copy()
    for nth in range(_ROUNDS):
        for a, b, c, d in _COLUMNS_THEN_DIAGONALS[nth % 2]:
            for into, other, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[into] += state[other]
                mixed = state[turned] ^ state[into]
                state[turned] = mixed << np.uint32(by) | mixed >> np.uint32(32 - by)
    return (state + start).T.reshape(-1)
