//! Every command decodes to what was meant, every malformed one to the status of the specification.

use super::*;
use headwater_nvme::spec::kv::{self, DataPointer};
use proptest::prelude::*;
use zerocopy::little_endian::{U32, U64};

const DATA: DataPointer = DataPointer { address: 0x12_3456, bytes: 700 };
const RANGE: IovaRange = IovaRange { start: Iova(0x12_3456), bytes: 700 };

fn key() -> InlineKey {
    InlineKey::new(b"ten bytes!").unwrap()
}

fn store() -> SubmissionEntry {
    kv::store(3, key(), DATA, StoreOptions::NONE)
}

fn operation(entry: &SubmissionEntry, kind: QueueKind) -> Result<IoOperation, Status> {
    let command = decode(entry, kind)?;
    assert_eq!(command.namespace, NamespaceId(3));
    Ok(command.operation)
}

/// One valid entry of each opcode.
fn valid() -> Vec<SubmissionEntry> {
    vec![
        store(),
        kv::retrieve(3, key(), DATA),
        kv::list(3, Some(key()), DATA),
        kv::delete(3, key()),
        kv::exist(3, key()),
        kv::flush(3),
        kv::uio_put(3, DATA, DATA),
        kv::uio_get(3, DATA, DATA),
    ]
}

#[test]
fn every_command_decodes_to_what_was_meant() {
    let expected = [
        IoOperation::Store { key: key(), value: RANGE, condition: Condition::Always },
        IoOperation::Retrieve { key: key(), buffer: RANGE },
        IoOperation::List { from: Some(key()), buffer: RANGE },
        IoOperation::Delete { key: key() },
        IoOperation::Exist { key: key() },
        IoOperation::Flush,
        IoOperation::Put { key: RANGE, value: RANGE },
        IoOperation::Get { key: RANGE, buffer: RANGE },
    ];
    for (entry, expected) in valid().iter().zip(expected) {
        assert_eq!(operation(entry, QueueKind::Uio), Ok(expected));
    }
    assert_eq!(
        operation(&kv::list(3, None, DATA), QueueKind::Kv),
        Ok(IoOperation::List { from: None, buffer: RANGE })
    );
}

#[test]
fn kv_queues_take_no_uio_commands() {
    for entry in valid() {
        let taken = decode(&entry, QueueKind::Kv);
        if entry.opcode >= 0x80 {
            assert_eq!(taken, Err(Status::INVALID_OPCODE));
        } else {
            assert!(taken.is_ok());
        }
    }
}

#[test]
fn unknown_opcodes_are_invalid() {
    for opcode in 0..=u8::MAX {
        if IoOpcode::from_number(opcode).is_none() {
            let entry = SubmissionEntry { opcode, ..store() };
            assert_eq!(decode(&entry, QueueKind::Uio), Err(Status::INVALID_OPCODE));
        }
    }
}

#[test]
fn store_options_become_conditions() {
    let with = |options| decode(&kv::store(3, key(), DATA, options), QueueKind::Kv);
    let condition = |options| match with(options).unwrap().operation {
        IoOperation::Store { condition, .. } => condition,
        other => panic!("a store decoded to {other:?}"),
    };
    let exists = StoreOptions::ONLY_IF_EXISTS;
    let absent = StoreOptions::ONLY_IF_ABSENT;
    assert_eq!(condition(exists), Condition::IfExists);
    assert_eq!(condition(absent.and(StoreOptions::NO_COMPRESSION)), Condition::IfAbsent);
    assert_eq!(condition(StoreOptions::NO_COMPRESSION), Condition::Always);
    assert_eq!(with(exists.and(absent)), Err(Status::INVALID_FIELD));
    for bit in 3..8 {
        assert_eq!(with(StoreOptions(1 << bit)), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn key_lengths_get_the_status_of_the_specification() {
    for entry in &valid()[..5] {
        let with = |bytes: u32| {
            let cdw11 = U32::new(entry.cdw11.get() & !0xFF | bytes);
            decode(&SubmissionEntry { cdw11, ..*entry }, QueueKind::Kv)
        };
        for bytes in 17..=255 {
            assert_eq!(with(bytes), Err(Status::INVALID_FIELD), "{entry:?}");
        }
        for bytes in 1..=16 {
            assert!(with(bytes).is_ok());
        }
        let is_list = entry.opcode == IoOpcode::List.number();
        assert_eq!(with(0).err(), (!is_list).then_some(Status::INVALID_KEY_SIZE));
    }
    for entry in &valid()[6..] {
        let with = |bytes: u64| {
            let metadata_pointer = U64::new(bytes);
            decode(&SubmissionEntry { metadata_pointer, ..*entry }, QueueKind::Uio)
        };
        assert!(with(1).is_ok());
        assert!(with(65_535).is_ok());
        for bytes in [0, 65_536, 1 << 32, (1 << 32) + 1, u64::MAX] {
            assert_eq!(with(bytes), Err(Status::INVALID_KEY_SIZE));
        }
    }
}

#[test]
fn value_lengths_get_the_status_of_the_specification() {
    let store = |bytes| {
        decode(&kv::store(3, key(), DataPointer { bytes, ..DATA }, StoreOptions::NONE), QueueKind::Kv)
    };
    assert!(store(0).is_ok());
    assert!(store(16 << 20).is_ok());
    assert_eq!(store((16 << 20) + 1), Err(Status::INVALID_VALUE_SIZE));
    assert_eq!(store(u32::MAX), Err(Status::INVALID_VALUE_SIZE));
    let uio = |entry: SubmissionEntry, bytes| {
        let prp2 = U64::new(bytes);
        decode(&SubmissionEntry { prp2, ..entry }, QueueKind::Uio)
    };
    let put = kv::uio_put(3, DATA, DATA);
    assert!(uio(put, 16 << 20).is_ok());
    assert_eq!(uio(put, (16 << 20) + 1), Err(Status::INVALID_VALUE_SIZE));
    assert_eq!(uio(put, u64::MAX), Err(Status::INVALID_VALUE_SIZE));
    // A buffer may be larger than any value; the part that no value reaches is left alone.
    match uio(kv::uio_get(3, DATA, DATA), u64::MAX).unwrap().operation {
        IoOperation::Get { buffer, .. } => assert_eq!(buffer.bytes, 16 << 20),
        other => panic!("a get decoded to {other:?}"),
    }
    let list = |bytes| decode(&kv::list(3, None, DataPointer { bytes, ..DATA }), QueueKind::Kv);
    assert_eq!(list(3), Err(Status::INVALID_FIELD));
    assert!(list(4).is_ok());
}

#[test]
fn namespaces_that_are_none_are_refused() {
    for entry in valid() {
        for number in [0, 17, 255, 256, 257, u32::MAX] {
            let namespace = U32::new(number);
            assert_eq!(
                decode(&SubmissionEntry { namespace, ..entry }, QueueKind::Uio),
                Err(Status::INVALID_NAMESPACE)
            );
        }
    }
}

#[test]
fn fused_commands_sgls_and_reserved_bits_are_refused() {
    for entry in valid() {
        for bit in 0..8 {
            let flags = 1 << bit;
            assert_eq!(
                decode(&SubmissionEntry { flags, ..entry }, QueueKind::Uio),
                Err(Status::INVALID_FIELD)
            );
        }
        let one = U32::new(1);
        for bad in [
            SubmissionEntry { cdw12: one, ..entry },
            SubmissionEntry { cdw13: one, ..entry },
            SubmissionEntry { cdw11: U32::new(entry.cdw11.get() | 1 << 16), ..entry },
        ] {
            assert_eq!(decode(&bad, QueueKind::Uio), Err(Status::INVALID_FIELD));
        }
        if matches!(entry.opcode, 0x10 | 0x14 | 0x00 | 0x81 | 0x82) {
            let bad = SubmissionEntry { cdw10: one, ..entry };
            assert_eq!(decode(&bad, QueueKind::Uio), Err(Status::INVALID_FIELD));
        }
        if matches!(entry.opcode, 0x01 | 0x02 | 0x06) {
            let bad = SubmissionEntry { prp2: U64::new(4_096), ..entry };
            assert_eq!(decode(&bad, QueueKind::Uio), Err(Status::INVALID_FIELD));
        }
    }
}

/// Entries of which some bytes are valid, so that the deeper checks are reached too.
fn any_entry() -> impl Strategy<Value = SubmissionEntry> {
    let noise = any::<[u64; 8]>().prop_map(SubmissionEntry::from_words);
    let damaged =
        (0..8_usize, prop::collection::vec((0..8_usize, 0..64_u32), 0..4)).prop_map(|(which, flips)| {
            let mut words = valid()[which].to_words();
            for (word, bit) in flips {
                words[word] ^= 1 << bit;
            }
            SubmissionEntry::from_words(words)
        });
    prop_oneof![noise, damaged]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_entry_panics_and_every_refusal_is_final(entry in any_entry(), uio in any::<bool>()) {
        let kind = if uio { QueueKind::Uio } else { QueueKind::Kv };
        match decode(&entry, kind) {
            Ok(command) => {
                prop_assert!((1..=16).contains(&command.namespace.0));
                prop_assert_eq!(entry.flags, 0);
                match command.operation {
                    IoOperation::Store { key, value, .. } => {
                        prop_assert!((1..=16).contains(&key.as_bytes().len()));
                        prop_assert!(value.bytes <= 16 << 20);
                    }
                    IoOperation::Put { key, value } | IoOperation::Get { key, buffer: value } => {
                        prop_assert_eq!(kind, QueueKind::Uio);
                        prop_assert!((1..=65_535).contains(&key.bytes));
                        prop_assert!(value.bytes <= 16 << 20);
                    }
                    IoOperation::List { buffer, .. } => prop_assert!(buffer.bytes >= 4),
                    IoOperation::Retrieve { key, .. } | IoOperation::Delete { key } | IoOperation::Exist { key } => {
                        prop_assert!((1..=16).contains(&key.as_bytes().len()));
                    }
                    IoOperation::Flush => {}
                }
            }
            Err(status) => {
                prop_assert!(!status.is_success());
                // Truthful: the decoder sees the entry and nothing else, so the same entry fails again.
                prop_assert!(status.do_not_retry);
                prop_assert_eq!(decode(&entry, kind), Err(status));
            }
        }
    }
}
