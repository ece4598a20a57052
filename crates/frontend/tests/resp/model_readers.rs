//! The values that a model of the device reads in parts.
//!
//! Input: readers with their values. Output: the next bytes of each. A reader is closed by the end of its value.

use headwater_ssd::command::Sequence;
use std::collections::BTreeMap;

/// A value that is read in parts.
pub(crate) struct ModelReader {
    /// Its namespace and key.
    pub(crate) key: (u8, Vec<u8>),
    /// The sequence of its record.
    pub(crate) sequence: Sequence,
    value: Vec<u8>,
    read: usize,
}

impl ModelReader {
    pub(crate) fn new(key: (u8, Vec<u8>), sequence: Sequence, value: Vec<u8>) -> Self {
        Self { key, sequence, value, read: 0 }
    }
}

/// The readers that are open, by their numbers.
#[derive(Default)]
pub(crate) struct ModelReaders(BTreeMap<u64, ModelReader>);

impl ModelReaders {
    pub(crate) fn open(&mut self, number: u64, reader: ModelReader) {
        assert!(self.0.insert(number, reader).is_none(), "two readers have the number {number}");
    }

    /// Returns a part of a value, behind those that were read, or nothing if it is given up.
    pub(crate) fn read(
        &mut self,
        number: u64,
        (offset, bytes_max): (usize, usize),
        is_given_up: impl FnOnce(&ModelReader) -> bool,
    ) -> Option<Vec<u8>> {
        let mut reader = self.0.remove(&number).expect("the reader is open");
        if is_given_up(&reader) {
            return None;
        }
        assert!(offset >= reader.read, "a part from {offset} on behind one up to {}", reader.read);
        let end = reader.value.len().min(offset + bytes_max);
        let part = reader.value[offset..end].to_vec();
        reader.read = end;
        if end < reader.value.len() {
            self.0.insert(number, reader);
        }
        Some(part)
    }
}
