//! A key with its value, and its bytes in the memory.
//!
//! ```text
//! u64 offset of the next entry of the bucket, 0 for the last
//! u64 when the key expires, in milliseconds since 1970, 0 for never
//! u32 length of the key, u32 length of the value, key, value
//! ```

/// Bytes before the key.
pub const HEAD: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// In milliseconds since 1970.
    pub expires: Option<u64>,
}

impl<'a> Entry<'a> {
    /// The entry that begins where `bytes` do; `None` if they end before the entry does.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let [key, value] = [16, 20].map(|at| {
            u32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize
        });
        let (key, rest) = rest.split_at_checked(key)?;
        let expires = u64::from_ne_bytes(head[8..16].try_into().expect("eight bytes"));
        Some(Self { key, value: rest.get(..value)?, expires: (expires != 0).then_some(expires) })
    }

    /// Writes the entry to the beginning of `bytes`, except for the offset of the next one.
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[8..16].copy_from_slice(&self.expires.unwrap_or(0).to_ne_bytes());
        bytes[16..20].copy_from_slice(&(self.key.len() as u32).to_ne_bytes());
        bytes[20..HEAD].copy_from_slice(&(self.value.len() as u32).to_ne_bytes());
        let (key, value) = bytes[HEAD..self.size()].split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        value.copy_from_slice(self.value);
    }

    pub fn size(&self) -> usize {
        HEAD + self.key.len() + self.value.len()
    }

    pub fn is_gone(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}
