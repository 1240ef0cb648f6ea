//! The file of a VM's devices. Its last eight bytes are the checksum of the other bytes.

/// Returns true if these bytes are a complete state.
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    let parts = bytes.split_last_chunk();
    parts.is_some_and(|(state, sum)| !state.is_empty() && crc64(state) == u64::from_le_bytes(*sum))
}

/// The version of the format, such as `11.0.0`. It follows a number of eight bytes whose last four are the same for all
/// architectures; that number is at the beginning, or behind one byte (1.17). `None` if a state does not begin so.
pub(crate) fn version(state: &[u8]) -> Option<String> {
    const MAGIC: [u8; 4] = 0x0710_1984_u32.to_le_bytes();
    let begin = &state[..state.len().min(9)];
    let text = [8, 9].into_iter().find_map(|end| {
        let number = begin.get(..end)?;
        number.ends_with(&MAGIC).then(|| &state[end..])
    })?;
    // The length of the text is a byte (1.17), or a number of eight bytes.
    let of_byte = text.split_first().map(|(&len, text)| (usize::from(len), text));
    let of_word = text
        .split_first_chunk()
        .and_then(|(len, text)| Some((usize::try_from(u64::from_le_bytes(*len)).ok()?, text)));
    [of_byte, of_word].into_iter().flatten().find_map(|(len, text)| {
        let text = std::str::from_utf8(text.get(..len)?).ok()?;
        let is_number = |part: &str| {
            (1..=5).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_version = text.split('.').count() == 3 && text.split('.').all(is_number);
        is_version.then(|| text.to_owned())
    })
}

/// CRC-64 with the polynomial of Jones, reflected, as Firecracker computes it.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    const TABLE: [u64; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let (mut sum, mut bit) = (index as u64, 0);
            while bit < 8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
                bit += 1;
            }
            table[index] = sum;
            index += 1;
        }
        table
    };
    bytes.iter().fold(0, |sum, &byte| TABLE[(sum as u8 ^ byte) as usize] ^ sum >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_published_one() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn version_is_read_in_both_forms_and_nothing_else_is_one() {
        let x86 = 0x0710_1984_8664_0000_u64.to_le_bytes();
        let state = |parts: &[&[u8]]| [&x86[..], &parts.concat()].concat();
        let since = [&[0][..], &state(&[b"\x0611.0.0", b"more"])].concat();
        let before = state(&[&5_u64.to_le_bytes(), b"6.0.0", b"more"]);
        assert_eq!(
            (version(&since), version(&before)),
            (Some("11.0.0".into()), Some("6.0.0".into()))
        );
        assert_eq!(version(&since[..15]), None);
        for other in [&b"\x0611.0.x"[..], b"\x0411.0", b"\xff", b"", b"\x06+1.0.0"] {
            assert_eq!(version(&state(&[other])), None, "{other:?}");
        }
        assert_eq!(version(b"\0\0\0\0\0\0\0\0\x0611.0.0"), None);
    }

    #[test]
    fn state_that_is_cut_or_empty_is_not_whole() {
        let mut state = b"a state".to_vec();
        state.extend(crc64(b"a state").to_le_bytes());
        assert!(is_whole(&state));
        assert!(!is_whole(&state[..state.len() - 1]) && !is_whole(&[]) && !is_whole(&[0; 8]));
    }
}
