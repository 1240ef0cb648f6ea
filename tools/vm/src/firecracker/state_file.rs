//! The file of a VM's devices. Its last eight bytes are the checksum of the other bytes.

/// Returns true if these bytes are a complete state.
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    let parts = bytes.split_last_chunk();
    parts.is_some_and(|(state, sum)| !state.is_empty() && crc64(state) == u64::from_le_bytes(*sum))
}

/// Computes a CRC-64 with the polynomial of Jones, reflected, as Firecracker does.
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
    fn state_that_is_cut_or_empty_is_not_whole() {
        let mut state = b"a state".to_vec();
        state.extend(crc64(b"a state").to_le_bytes());
        assert!(is_whole(&state));
        assert!(!is_whole(&state[..state.len() - 1]) && !is_whole(&[]) && !is_whole(&[0; 8]));
    }
}
