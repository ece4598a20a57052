//! Decodes the data of a List command (KV 1.0d section 3.2.2, figures 15 and 16).
//!
//! Input: bytes of a buffer from any device. Output: complete keys up to the first malformed entry.

use headwater_nvme::spec::kv::LIST_HEADER_BYTES;

/// Returns the complete keys of a list.
#[must_use]
pub fn decode_key_list(answer: &[u8]) -> Vec<Vec<u8>> {
    let Some((count, mut rest)) = answer.split_at_checked(LIST_HEADER_BYTES) else {
        return Vec::new();
    };
    let count = count.iter().rev().fold(0_usize, |count, &byte| (count << 8) | usize::from(byte));
    let mut keys = Vec::new();
    while keys.len() < count {
        let Some((&[low, high], _)) = rest.split_first_chunk() else {
            break;
        };
        let bytes = usize::from(u16::from_le_bytes([low, high]));
        let Some(key) = rest.get(2..2 + bytes) else {
            break;
        };
        keys.push(key.to_vec());
        let Some(behind) = rest.get((2 + bytes).next_multiple_of(4)..) else {
            break;
        };
        rest = behind;
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_nvme::spec::kv::ListEncoder;

    #[test]
    fn encoded_key_list_decodes_to_the_same_keys() {
        let mut encoder = ListEncoder::new(4_096).unwrap();
        let keys: Vec<Vec<u8>> = (1..=16).map(|bytes| vec![7; bytes]).collect();
        keys.iter().for_each(|key| encoder.push(key).unwrap());
        assert_eq!(decode_key_list(&encoder.finish()), keys);
    }

    #[test]
    fn truncated_key_list_yields_its_complete_keys() {
        let mut encoder = ListEncoder::new(4_096).unwrap();
        (0..10).for_each(|_| encoder.push(b"abcdefg").unwrap());
        let answer = encoder.finish();
        for cut in 0..answer.len() {
            assert!(decode_key_list(&answer[..cut]).iter().all(|key| key == b"abcdefg"));
        }
        assert!(decode_key_list(&[0xFF; 64]).is_empty());
    }
}
