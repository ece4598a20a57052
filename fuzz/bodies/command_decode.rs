//! A submission queue entry: decoded or refused with a status, whatever the 64 bytes are.

use headwater_converged::interpreter::decode;

/// One run.
pub(crate) fn body(bytes: &[u8]) {
    let mut entry = [0; 64];
    let length = bytes.len().min(entry.len());
    entry[..length].copy_from_slice(&bytes[..length]);
    let first = format!("{:?}", decode(&entry));
    let again = format!("{:?}", decode(&entry));
    assert_eq!(first, again, "the same entry was decoded in two ways");
}
