//! A submission queue entry: decoded into something possible, or refused for good, whatever the 64 bytes are.

use headwater_converged::interpreter::{IoOperation, decode};
use headwater_converged::limits::{KEY_BYTES_MAX, NAMESPACES, VALUE_BYTES_MAX};
use headwater_converged::namespace::Namespace;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::command::{SUBMISSION_WORDS, SubmissionEntry};

/// One run.
pub(crate) fn body(bytes: &[u8]) {
    let mut words = [0; SUBMISSION_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(whole);
    }
    let entry = SubmissionEntry::from_words(words);
    assert_eq!(entry.to_words(), words, "an entry changed on its way");
    check(&entry, QueueKind::Standard);
    check(&entry, QueueKind::Uio);
}

fn check(entry: &SubmissionEntry, kind: QueueKind) {
    let command = match decode(entry, kind, |_| Some(Namespace::IMPLICIT)) {
        Ok(command) => command,
        Err(status) => {
            assert!(!status.is_success(), "refused with success");
            assert!(status.do_not_retry, "the same entry would be refused again: {status:?}");
            return;
        }
    };
    assert!((1..=NAMESPACES).contains(&usize::from(command.namespace.0)));
    let key_bytes = match command.operation {
        IoOperation::Flush => return,
        IoOperation::List { from, .. } => from.map_or(1, |key| key.as_bytes().len()),
        IoOperation::Store { key, .. }
        | IoOperation::Retrieve { key, .. }
        | IoOperation::Delete { key, .. }
        | IoOperation::Exist { key } => key.as_bytes().len(),
        IoOperation::Put { key, .. } | IoOperation::Get { key, .. } => {
            assert_eq!(kind, QueueKind::Uio, "a queue without client memory took a key by address");
            usize::try_from(key.bytes).expect("32 bits fit")
        }
    };
    assert!((1..=KEY_BYTES_MAX).contains(&key_bytes), "a key of {key_bytes} bytes");
    let bytes = usize::try_from(command.data().bytes()).expect("32 bits fit");
    assert!(bytes <= VALUE_BYTES_MAX, "{bytes} bytes of data");
}
