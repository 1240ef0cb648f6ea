//! Two versions of a state that XXH3 takes for equal, whatever its seed: written by a client who knows no seed.
//!
//! XXH3 adds `lo32(data ^ key) * hi32(data ^ key)` to one accumulator for each word of a lane, and the data to its
//! neighbour. A seed is added to all keys of one parity. Flip the highest bit of two words of one lane: the data's sum is
//! the same modulo 2⁶⁴, and the two products change by the same amount in opposite directions, if the low halves of both
//! `data ^ key` are equal and their highest bits are not. That depends on how two keys differ, which is the same for many
//! seeds: up to one in 64. A block for each such difference covers nearly all seeds.

use std::collections::HashMap;

/// Bytes of a block, and of the part of it that XXH3 accumulates before it scrambles.
const BLOCK: usize = 4096;
const PART: usize = 1024;

const WORD: usize = 8;
const LANES: usize = 8;
const STRIPES: usize = 16;

/// XXH3's secret.
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

const HIGHEST: u64 = 1 << 63;

/// Two words of a block whose highest bits are flipped, and how the first version's differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    words: [usize; 2],
    difference: u64,
}

impl Pair {
    /// With key words of these numbers, for chains of that seed: `None` if no lane has both in one part.
    fn of(keys: [usize; 2], seed: u64) -> Option<Self> {
        let lane = keys[1].saturating_sub(STRIPES - 1);
        let is_there = keys[0] >= lane && (keys[1] - keys[0]).is_multiple_of(2);
        if !is_there || lane >= LANES {
            return None;
        }
        let words = keys.map(|key| (key - lane) * LANES + lane);
        let [one, other] = keys.map(|key| key_word(key, seed));
        let difference = ((one ^ other) ^ HIGHEST) & (HIGHEST | u64::from(u32::MAX));
        Some(Self { words, difference })
    }

    /// The two versions of a block, which do not differ before `from`.
    fn write(self, from: usize, versions: [&mut [u8]; 2]) {
        for (version, flip) in versions.into_iter().zip([0, HIGHEST]) {
            let words = [flip, self.difference ^ flip];
            for (place, word) in self.words.into_iter().zip(words) {
                version[from + place * WORD..][..WORD].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// What is combined with the data, where the seed is this.
fn key_word(number: usize, seed: u64) -> u64 {
    let bytes = SECRET[number * WORD..][..WORD].try_into().expect("a word");
    let word = u64::from_le_bytes(bytes);
    if number.is_multiple_of(2) { word.wrapping_add(seed) } else { word.wrapping_sub(seed) }
}

/// Pairs, those first that are of most seeds.
fn pairs() -> Vec<Pair> {
    const SAMPLES: usize = 4096;
    let mut random = 1_u64;
    let mut seeds = Vec::new();
    for _ in 0..SAMPLES {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        seeds.push(random ^ random >> 32);
    }
    let keys = (0..24).flat_map(|one| (one + 1..24).map(move |other| [one, other]));
    let mut of: HashMap<Pair, usize> = HashMap::new();
    for keys in keys {
        for &seed in &seeds {
            if let Some(pair) = Pair::of(keys, seed) {
                *of.entry(pair).or_default() += 1;
            }
        }
    }
    let mut pairs: Vec<_> = of.into_iter().collect();
    pairs.sort_by_key(|(pair, seeds)| (std::cmp::Reverse(*seeds), pair.words, pair.difference));
    pairs.into_iter().map(|(pair, _)| pair).collect()
}

/// Two versions of a state of that many blocks. Each block of the one differs from that of the other, in a part of 1 KiB
/// that begins at `from`.
pub(crate) fn versions(blocks: usize, from: usize) -> [Vec<u8>; 2] {
    assert!(
        from.is_multiple_of(PART) && from < BLOCK - PART,
        "XXH3 treats the last stripe otherwise"
    );
    let mut versions = [vec![7; blocks * BLOCK], vec![7; blocks * BLOCK]];
    let [one, other] = &mut versions;
    let blocks = one.chunks_mut(BLOCK).zip(other.chunks_mut(BLOCK));
    for ((one, other), pair) in blocks.zip(pairs()) {
        pair.write(from, [one, other]);
    }
    versions
}
