//! A submission queue entry: any 64 bytes decode into a valid command, or are refused with Do Not Retry.

use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use headwater_nvme::spec::kv::StoreOptions;
use headwater_ssd::limits::{
    COPY_RANGES_MAX, KEY_BYTES_MAX, NAMESPACES, TRANSFER_BYTES_MAX, VALUE_BYTES_MAX,
};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceKind};
use headwater_ssd::nvme::decoder::{BlockOperation, BlockSpace, IoOperation, decode};

/// Decodes an entry for each kind of queue and namespace.
///
/// # Panics
/// If a decoded command violates a limit, or if a refusal allows a retry.
pub fn body(bytes: &[u8]) {
    let mut words = [0; SUBMISSION_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(whole);
    }
    let entry = SubmissionEntry::from_words(words);
    assert_eq!(entry.to_words(), words, "an entry changed by conversion");
    check(&entry, QueueKind::Standard);
    check(&entry, QueueKind::Uio);
    for format in BlockFormat::ALL {
        // Sizes that the fields of an entry can reach, miss and overflow.
        for blocks in [0, 1, 0x1_0000, u64::MAX >> format.shift()] {
            check_blocks(&entry, BlockSpace { blocks, format });
        }
    }
}

fn check_blocks(entry: &SubmissionEntry, space: BlockSpace) {
    let namespace =
        Namespace { kind: NamespaceKind::Block(space.format), size: space.blocks, ..Namespace::IMPLICIT };
    let command = match decode(entry, QueueKind::Uio, |_| Some(namespace)) {
        Ok(command) => command,
        Err(status) => {
            assert!(!status.is_success() && status.do_not_retry, "{status:?}");
            return;
        }
    };
    let bytes = command.data().bytes();
    assert!(bytes <= TRANSFER_BYTES_MAX);
    let inside = |start: u64, blocks: u64| {
        assert!(
            start.checked_add(blocks).is_some_and(|end| end <= space.blocks),
            "blocks outside the namespace"
        );
    };
    let operation = match command.operation {
        IoOperation::Flush => return,
        IoOperation::Block(operation) => operation,
        other => panic!("a block namespace took {other:?}"),
    };
    match operation {
        BlockOperation::Read { range, .. } | BlockOperation::Compare { range, .. } => {
            assert_eq!(u64::from(bytes), u64::from(range.blocks) << space.format.shift());
            inside(range.start.0, u64::from(range.blocks));
        }
        BlockOperation::Write { start, .. } => {
            assert!(bytes > 0 && u64::from(bytes) % (1 << space.format.shift()) == 0);
            inside(start.0, u64::from(bytes) >> space.format.shift());
        }
        BlockOperation::WriteZeroes { range, .. } | BlockOperation::Verify { range, .. } => {
            assert!(range.blocks > 0);
            inside(range.start.0, u64::from(range.blocks));
        }
        BlockOperation::DatasetManagement { space: within, .. } => {
            assert_eq!(within, space);
            assert!(bytes.is_multiple_of(16) && (1..=256).contains(&(bytes / 16)));
        }
        BlockOperation::Copy { destination, space: within, .. } => {
            assert_eq!(within, space);
            assert!(bytes.is_multiple_of(32) && (1..=u32::from(COPY_RANGES_MAX)).contains(&(bytes / 32)));
            inside(destination.0, 1);
        }
    }
}

fn check(entry: &SubmissionEntry, kind: QueueKind) {
    let command = match decode(entry, kind, |_| Some(Namespace::IMPLICIT)) {
        Ok(command) => command,
        Err(status) => {
            assert!(!status.is_success(), "refused with a success status");
            assert!(status.do_not_retry, "the same entry would be refused again: {status:?}");
            return;
        }
    };
    assert!((1..=NAMESPACES).contains(&usize::from(command.namespace.0)));
    let key_bytes = match command.operation {
        IoOperation::Flush => return,
        IoOperation::Block(other) => panic!("a key space took {other:?}"),
        IoOperation::List { from, .. } => from.map_or(1, |key| key.as_bytes().len()),
        IoOperation::Retrieve { key, offset, .. } => {
            let has_offset = entry.kv_options().contains(StoreOptions::RETRIEVE_FROM);
            assert_eq!(
                offset,
                if has_offset { entry.cdw12.get() } else { 0 },
                "an offset without its option"
            );
            key.as_bytes().len()
        }
        IoOperation::Store { key, .. } | IoOperation::Delete { key, .. } | IoOperation::Exist { key } => {
            key.as_bytes().len()
        }
        IoOperation::Put { key, .. } | IoOperation::Get { key, .. } => {
            assert_eq!(kind, QueueKind::Uio, "a queue without client memory took a key by address");
            usize::try_from(key.bytes).expect("32 bits fit")
        }
    };
    assert!((1..=KEY_BYTES_MAX).contains(&key_bytes), "a key of {key_bytes} bytes");
    let bytes = usize::try_from(command.data().bytes()).expect("32 bits fit");
    assert!(bytes <= VALUE_BYTES_MAX, "{bytes} bytes of data");
}
