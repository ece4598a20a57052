//! Replays the fuzz corpus of record headers, which the encoder wrote.

use crate::replay;
use headwater_fuzz_bodies::record_header as body;
use headwater_ssd::command::{NamespaceId, Sequence};
use headwater_ssd::log::record::{FLAG_BATCH_MORE, FLAG_CLEAR, FLAG_LBA, FLAG_TOMBSTONE, RecordHeader};

#[test]
fn corpus_of_record_headers_stays_clean() {
    replay::replay("record_header", body::body);
}

#[test]
fn seeds_of_record_headers_are_what_the_encoder_writes() {
    let value = RecordHeader {
        crc: 0x0102_0304,
        flags: 0,
        key_bytes: 5,
        value_bytes: 70_000,
        extents: 0,
        namespace: NamespaceId(2),
        sequence: Sequence(900),
        expiry_ms: 1_900_000_000_000,
    };
    let seeds = [
        ("value", value),
        ("removal", RecordHeader { flags: FLAG_TOMBSTONE | FLAG_BATCH_MORE, value_bytes: 0, ..value }),
        ("clear", RecordHeader { flags: FLAG_CLEAR, key_bytes: 0, value_bytes: 0, ..value }),
        ("block", RecordHeader { flags: FLAG_LBA, key_bytes: 8, value_bytes: 4_096, ..value }),
        (
            "namespace",
            RecordHeader {
                flags: FLAG_LBA,
                key_bytes: 8,
                namespace: NamespaceId(17),
                value_bytes: 64,
                ..value
            },
        ),
    ];
    for (name, header) in seeds {
        replay::assert_seed("record_header", name, &header.encode());
    }
}
