//! Tags of blocks: two blocks with the same tag count as equal.
//!
//! A tag is the first 128 bits of AEGIS-256X2, used as a message authentication code, under a
//! random key of 256 bits. No file contains the key, no other chain uses it, and no tag leaves the
//! process. So a client who chooses the bytes of blocks cannot find two blocks with one tag. Two
//! different blocks have the same tag by chance with a probability of 2⁻¹²⁸. A checksum such as
//! XXH3 is not sufficient: one can choose two blocks that have the same checksum under most seeds.

use std::fmt;
use std::io;

use aegis::aegis256x2::Aegis256X2Mac;

use crate::format::random;

pub(crate) type Tag = [u8; 16];

/// Makes tags by one key.
///
/// In a box, because its alignment would be that of a [`Chain`](crate::Chain): an object of Python (pyo3 0.30) has at most
/// 16 bytes.
pub(crate) struct Tagger(Box<Aegis256X2Mac<{ size_of::<Tag>() }>>);

impl Tagger {
    /// With a key of its own.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Box::new(Aegis256X2Mac::new(&random()?))))
    }

    pub(crate) fn tag(&self, block: &[u8]) -> Tag {
        let mut mac = Aegis256X2Mac::clone(&self.0);
        mac.update(block);
        mac.finalize()
    }
}

/// Shows nothing of the key.
impl fmt::Debug for Tagger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tagger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_is_aligned_as_other_values_are() {
        assert!(align_of::<crate::Chain>() <= 16);
    }

    #[test]
    fn tags_differ_by_a_bit_a_length_and_a_key() {
        let (tagger, other) = (Tagger::new().unwrap(), Tagger::new().unwrap());
        let block: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
        let tag = tagger.tag(&block);
        assert_eq!(tag, tagger.tag(&block));
        assert_ne!(tag, other.tag(&block));
        assert_ne!(tag, tagger.tag(&block[..4095]));
        for bit in (0..4096 * 8).step_by(61) {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(tag, tagger.tag(&block), "{bit}");
        }
        assert_eq!(format!("{tagger:?}"), "Tagger");
    }
}
