//! Every command decodes to its operation, every malformed one to the status of the specification.

use super::*;
use headwater_dma::iova::Iova;
use headwater_nvme::spec::kv::{self, DataPointer, StoreOptions};
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

fn retrieve(offset: u32, caching: ReadCaching) -> IoOperation {
    IoOperation::Retrieve { key: key(), offset, caching }
}

/// Decodes an entry for a device on which every namespace is a key space.
fn decode(entry: &SubmissionEntry, kind: QueueKind) -> Result<IoCommand, Status> {
    super::decode(entry, kind, |_| Some(Namespace::IMPLICIT))
}

fn operation(entry: &SubmissionEntry, kind: QueueKind) -> Result<(IoOperation, DataNeed), Status> {
    let command = decode(entry, kind)?;
    assert_eq!(command.namespace, NamespaceId(3));
    Ok((command.operation, command.data()))
}

/// Returns one valid entry of each opcode.
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
fn every_command_decodes_to_its_operation() {
    let expected = [
        (IoOperation::Store { key: key(), condition: WriteCondition::Always }, DataNeed::FromHost(700)),
        (retrieve(0, ReadCaching::ByLength), DataNeed::ToHost(700)),
        (IoOperation::List { from: Some(key()) }, DataNeed::ToHost(700)),
        (IoOperation::Delete { key: key(), missing: MissingKey::Ignored }, DataNeed::None),
        (IoOperation::Exist { key: key() }, DataNeed::None),
        (IoOperation::Flush, DataNeed::None),
        (IoOperation::Put { key: RANGE, value: RANGE }, DataNeed::FromHost(700)),
        (IoOperation::Get { key: RANGE, buffer: RANGE }, DataNeed::ToHost(700)),
    ];
    for (entry, expected) in valid().iter().zip(expected) {
        assert_eq!(operation(entry, QueueKind::Uio), Ok(expected));
    }
    assert_eq!(
        operation(&kv::list(3, None, DATA), QueueKind::Standard),
        Ok((IoOperation::List { from: None }, DataNeed::ToHost(700)))
    );
}

#[test]
fn kv_queues_take_no_uio_commands() {
    for entry in valid() {
        let taken = decode(&entry, QueueKind::Standard);
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
    let with = |options| decode(&kv::store(3, key(), DATA, options), QueueKind::Standard);
    let condition = |options| match with(options).unwrap().operation {
        IoOperation::Store { condition, .. } => condition,
        other => panic!("a store decoded to {other:?}"),
    };
    let exists = StoreOptions::ONLY_IF_EXISTS;
    let absent = StoreOptions::ONLY_IF_ABSENT;
    assert_eq!(condition(exists), WriteCondition::IfExists);
    assert_eq!(condition(absent.union(StoreOptions::NO_COMPRESSION)), WriteCondition::IfAbsent);
    assert_eq!(condition(StoreOptions::NO_COMPRESSION), WriteCondition::Always);
    assert_eq!(with(exists.union(absent)), Err(Status::INVALID_FIELD));
    for bit in 3..8 {
        assert_eq!(with(StoreOptions(1 << bit)), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn retrieve_options_become_an_offset_and_the_use_of_the_cache() {
    let with = |offset, options| {
        let entry = kv::retrieve_part(3, key(), DATA, (offset, options));
        operation(&entry, QueueKind::Standard).map(|(operation, _)| operation)
    };
    let (none, keep) = (StoreOptions::NONE, StoreOptions::RETRIEVE_KEEP);
    assert_eq!(with(0, none), Ok(retrieve(0, ReadCaching::ByLength)));
    assert_eq!(with(1, none), Ok(retrieve(1, ReadCaching::ByLength)));
    assert_eq!(with(u32::MAX, none), Ok(retrieve(u32::MAX, ReadCaching::ByLength)));
    assert_eq!(with(0, keep), Ok(retrieve(0, ReadCaching::Keep)));
    assert_eq!(with(7, keep.union(StoreOptions::RETRIEVE_RAW)), Ok(retrieve(7, ReadCaching::Keep)));
    // The option without an offset: from the front.
    assert_eq!(with(0, StoreOptions::RETRIEVE_FROM), Ok(retrieve(0, ReadCaching::ByLength)));
    for bit in 1..6 {
        assert_eq!(with(0, StoreOptions(1 << bit)), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn key_lengths_get_the_status_of_the_specification() {
    for entry in &valid()[..5] {
        let with = |bytes: u32| {
            let cdw11 = U32::new(entry.cdw11.get() & !0xFF | bytes);
            decode(&SubmissionEntry { cdw11, ..*entry }, QueueKind::Standard)
        };
        for bytes in 17..=255 {
            assert_eq!(with(bytes), Err(Status::INVALID_KEY_SIZE), "{entry:?}");
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
        decode(&kv::store(3, key(), DataPointer { bytes, ..DATA }, StoreOptions::NONE), QueueKind::Standard)
    };
    assert_eq!(store(0).unwrap().data(), DataNeed::FromHost(0));
    assert_eq!(store(16 << 20).unwrap().data(), DataNeed::FromHost(16 << 20));
    assert_eq!(store((16 << 20) + 1), Err(Status::INVALID_VALUE_SIZE));
    assert_eq!(store(u32::MAX), Err(Status::INVALID_VALUE_SIZE));
    let uio = |entry: SubmissionEntry, bytes| {
        let prp2 = U64::new(bytes);
        decode(&SubmissionEntry { prp2, ..entry }, QueueKind::Uio)
    };
    let put = kv::uio_put(3, DATA, DATA);
    assert!(uio(put, 256 << 20).is_ok());
    assert_eq!(uio(put, (256 << 20) + 1), Err(Status::INVALID_VALUE_SIZE));
    assert_eq!(uio(put, u64::MAX), Err(Status::INVALID_VALUE_SIZE));
    // A buffer may be larger than any value; its rest is never written.
    let get = uio(kv::uio_get(3, DATA, DATA), u64::MAX).unwrap();
    assert_eq!(get.data(), DataNeed::ToHost(256 << 20));
    match get.operation {
        IoOperation::Get { buffer, .. } => assert_eq!(buffer.bytes, 256 << 20),
        other => panic!("a get decoded to {other:?}"),
    }
    let retrieve = kv::retrieve(3, key(), DataPointer { bytes: u32::MAX, ..DATA });
    assert_eq!(decode(&retrieve, QueueKind::Standard).unwrap().data(), DataNeed::ToHost(16 << 20));
    let list = |bytes| decode(&kv::list(3, None, DataPointer { bytes, ..DATA }), QueueKind::Standard);
    assert_eq!(list(3), Err(Status::INVALID_FIELD));
    assert!(list(4).is_ok());
    assert_eq!(list(u32::MAX).unwrap().data(), DataNeed::ToHost(16 << 20));
}

#[test]
fn impossible_namespace_numbers_are_refused() {
    for entry in valid() {
        for number in [0, 17, 255, 256, 257, u32::MAX - 1] {
            let namespace = U32::new(number);
            assert_eq!(
                decode(&SubmissionEntry { namespace, ..entry }, QueueKind::Uio),
                Err(Status::INVALID_NAMESPACE)
            );
        }
    }
}

#[test]
fn inactive_namespace_is_an_invalid_field() {
    for entry in valid() {
        let refused = super::decode(&entry, QueueKind::Uio, |_| None);
        assert_eq!(refused, Err(Status::INVALID_FIELD));
    }
}

#[test]
fn flush_is_the_only_command_accepted_for_all_namespaces() {
    let namespace = U32::new(u32::MAX);
    for entry in valid() {
        let taken = decode(&SubmissionEntry { namespace, ..entry }, QueueKind::Uio);
        match entry.opcode {
            0 => assert_eq!(taken.unwrap().operation, IoOperation::Flush),
            _ => assert_eq!(taken, Err(Status::INVALID_NAMESPACE)),
        }
    }
}

#[test]
fn fused_commands_and_reserved_values_are_refused() {
    for entry in valid() {
        for flags in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0xC0] {
            let bad = SubmissionEntry { flags, ..entry };
            assert_eq!(decode(&bad, QueueKind::Uio), Err(Status::INVALID_FIELD));
        }
        // The transport checks the kind of the data pointer.
        for flags in [0x40, 0x80] {
            assert!(decode(&SubmissionEntry { flags, ..entry }, QueueKind::Uio).is_ok());
        }
    }
}

#[test]
fn reserved_dwords_are_ignored() {
    let noise = U32::new(0x1234_5678);
    for entry in valid() {
        let mut noisy = SubmissionEntry { cdw12: noise, cdw13: noise, ..entry };
        noisy.cdw11 = U32::new(entry.cdw11.get() | 0xFFFF_0000);
        assert_eq!(decode(&noisy, QueueKind::Uio), decode(&entry, QueueKind::Uio));
    }
    // Delete, Exist and List have no options.
    for entry in [kv::delete(3, key()), kv::exist(3, key()), kv::list(3, Some(key()), DATA)] {
        let noisy = SubmissionEntry { cdw11: U32::new(entry.cdw11.get() | 0xFF00), ..entry };
        assert_eq!(decode(&noisy, QueueKind::Standard), decode(&entry, QueueKind::Standard));
    }
}

#[test]
fn result_of_a_delete_without_key_is_that_of_the_namespace() {
    let command = decode(&kv::delete(3, key()), QueueKind::Standard).unwrap();
    let mut changed = command;
    changed.set_missing_key(MissingKey::Reported);
    let changed = changed.operation;
    assert_eq!(changed, IoOperation::Delete { key: key(), missing: MissingKey::Reported });
}

/// Returns random entries and valid entries with flipped bits, so that the later checks are reached too.
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
    fn no_entry_panics_and_every_refusal_repeats(entry in any_entry(), uio in any::<bool>()) {
        let kind = if uio { QueueKind::Uio } else { QueueKind::Standard };
        match decode(&entry, kind) {
            Ok(command) => {
                prop_assert!((1..=16).contains(&command.namespace.0));
                prop_assert_eq!(entry.flags & 0x3F, 0);
                let most = if uio { 256 << 20 } else { 16 << 20 };
                prop_assert!(command.data().bytes() <= most);
                match command.operation {
                    IoOperation::Put { key, .. } | IoOperation::Get { key, .. } => {
                        prop_assert_eq!(kind, QueueKind::Uio);
                        prop_assert!((1..=65_535).contains(&key.bytes));
                    }
                    IoOperation::List { .. } => prop_assert!(command.data().bytes() >= 4),
                    IoOperation::Store { key, .. }
                    | IoOperation::Retrieve { key, .. }
                    | IoOperation::Delete { key, .. }
                    | IoOperation::Exist { key } => {
                        prop_assert!((1..=16).contains(&key.as_bytes().len()));
                    }
                    IoOperation::Flush => {}
                    IoOperation::Block(other) => prop_assert!(false, "a key space took {other:?}"),
                }
            }
            Err(status) => {
                prop_assert!(!status.is_success());
                // Do Not Retry is truthful: decoding depends on the entry alone, so the same entry fails again.
                prop_assert!(status.do_not_retry);
                prop_assert_eq!(decode(&entry, kind), Err(status));
            }
        }
    }
}
