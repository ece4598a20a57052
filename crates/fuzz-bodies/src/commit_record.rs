//! A commit record: with a matching checksum it encodes to the bytes that it was decoded from, or it is none.

use headwater_host::copy::crc32c;
use headwater_ssd::log::commit_record::{CommitRecord, EPOCH_ENDS_MAX, RECORD_BYTES};
use headwater_ssd::media::CELL_BYTES;

const CRC_AT: usize = RECORD_BYTES - 4;
const ENDS_AT: usize = 288;
const END_BYTES: usize = 16;
/// Bytes that this version does not use: the last fields of the three streams, and the room behind them and the ends.
const UNUSED: [std::ops::Range<usize>; 4] = [124..128, 140..144, 156..ENDS_AT, 800..CRC_AT];
/// The start of the checksum, which another medium has too.
const SEED: u32 = 7;

/// Decodes a cell, as it is and with a matching checksum.
///
/// # Panics
/// If a decoded record encodes to other bytes, or a record counts on another medium.
pub fn body(bytes: &[u8]) {
    let mut cell = [0; CELL_BYTES];
    let length = bytes.len().min(CELL_BYTES);
    cell[..length].copy_from_slice(&bytes[..length]);
    check(&cell, 0);
    let crc = crc32c(SEED, &cell[..CRC_AT]);
    cell[CRC_AT..RECORD_BYTES].copy_from_slice(&crc.to_le_bytes());
    check(&cell, SEED);
    assert_eq!(CommitRecord::decode(&cell, SEED ^ 1), None, "a record of another medium counts");
    assert_eq!(CommitRecord::decode(&cell[..CRC_AT], SEED), None, "a part of a record counts");
}

fn check(cell: &[u8; CELL_BYTES], seed: u32) {
    let Some(record) = CommitRecord::decode(cell, seed) else { return };
    assert!(record.epoch_ends.len() <= EPOCH_ENDS_MAX);
    let mut expected = *cell;
    let ends = ENDS_AT + record.epoch_ends.len() * END_BYTES..UNUSED[3].start;
    UNUSED.into_iter().chain([ends]).for_each(|unused| expected[unused].fill(0));
    expected[RECORD_BYTES..].fill(0);
    let crc = crc32c(seed, &expected[..CRC_AT]);
    expected[CRC_AT..RECORD_BYTES].copy_from_slice(&crc.to_le_bytes());
    let mut encoded = [0xEE; CELL_BYTES];
    record.encode(&mut encoded, seed);
    assert!(encoded == expected, "a commit record changed by encoding: {record:?}");
    assert_eq!(CommitRecord::decode(&encoded, seed), Some(record));
}
