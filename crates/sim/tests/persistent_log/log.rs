//! A log in persistent memory, and the faults that are planted in it.
//!
//! Input: payloads. Output: payloads that survive a power cut once `append` has returned. Invariant: the commit word, one
//! aligned word, counts only records that are durable; so a record below it never fails its checksum.

use headwater_host::copy::crc32c;
use headwater_host::persistent_memory::{FenceError, LINE_BYTES, PersistentMemory, WORD_BYTES};
use headwater_host::width::narrow;

/// The place of the commit word: bytes in the log, and records in it.
const COMMIT_AT: usize = 0;
/// The place of the first record, in a line of its own.
const RECORDS_AT: usize = LINE_BYTES;
/// Length and checksum of a payload.
const HEADER_BYTES: usize = WORD_BYTES;

/// A change of the log that loses or damages records at a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFault {
    /// None.
    Correct,
    /// The record is stored through the cache and not flushed.
    RecordNotFlushed,
    /// The commit word is stored before a fence makes the record durable.
    NoFenceBeforeCommit,
    /// The commit word is not flushed.
    CommitNotFlushed,
    /// The append returns before a fence makes the commit word durable.
    NoFenceAfterCommit,
    /// The commit word is stored in two halves.
    TornCommit,
    /// The commit word is durable before the record.
    CommitFirst,
    /// The record lies partly in a line of which only the first one is flushed.
    LastLineNotFlushed,
}

/// A log that appends records behind each other.
#[derive(Debug)]
pub(crate) struct PersistentLog<'a, M> {
    memory: &'a M,
    fault: LogFault,
    end: usize,
    records: u32,
}

/// The error of a log whose committed bytes are not its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogDamage(pub(crate) String);

impl<'a, M: PersistentMemory> PersistentLog<'a, M> {
    /// Opens the log. Memory of zeros is an empty one.
    pub(crate) fn open(memory: &'a M, fault: LogFault) -> Result<(Self, Vec<Vec<u8>>), LogDamage> {
        let word = memory.load_word(COMMIT_AT);
        let (end, count) = (narrow::<u64, usize>(word & 0xFFFF_FFFF), narrow::<u64, u32>(word >> 32));
        let damage = |what: &str| LogDamage(format!("{what}; {count} records in {end} bytes are committed"));
        let mut log = Self { memory, fault, end: RECORDS_AT, records: 0 };
        let end = RECORDS_AT + end;
        if end > memory.bytes() {
            return Err(damage("end outside of the memory"));
        }
        let mut found = Vec::new();
        while log.end < end {
            let header = memory.load_word(log.end);
            let bytes: usize = narrow(header & 0xFFFF_FFFF);
            if bytes > end - log.end - HEADER_BYTES {
                return Err(damage("record longer than the log"));
            }
            let mut payload = vec![0; bytes];
            memory.load(log.end + HEADER_BYTES, &mut payload);
            if u64::from(crc32c(0, &payload)) != header >> 32 {
                return Err(damage("record whose checksum differs"));
            }
            found.push(payload);
            log.end += record_bytes(bytes);
            log.records += 1;
        }
        if log.records != count {
            return Err(damage("other number of records"));
        }
        Ok((log, found))
    }

    /// Appends a record. It is durable when this returns.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), FenceError> {
        let header = u64::from(crc32c(0, payload)) << 32 | payload.len() as u64;
        let mut record = header.to_le_bytes().to_vec();
        record.extend_from_slice(payload);
        record.resize(record_bytes(payload.len()), 0);
        let at = self.end;
        self.end += record.len();
        self.records += 1;
        if self.fault == LogFault::CommitFirst {
            self.commit()?;
        }
        match self.fault {
            LogFault::RecordNotFlushed => self.memory.store(at, &record),
            LogFault::LastLineNotFlushed => {
                self.memory.store(at, &record);
                self.memory.flush(at..(at + 1).next_multiple_of(LINE_BYTES));
            }
            _ => self.memory.write(at, &record),
        }
        if self.fault != LogFault::NoFenceBeforeCommit {
            self.memory.fence()?;
        }
        if self.fault != LogFault::CommitFirst {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&self) -> Result<(), FenceError> {
        let end: u32 = narrow(self.end - RECORDS_AT);
        let word = u64::from(self.records) << 32 | u64::from(end);
        match self.fault {
            LogFault::CommitNotFlushed => self.memory.store_word(COMMIT_AT, word),
            LogFault::TornCommit => {
                let (low, high) = (end.to_le_bytes(), self.records.to_le_bytes());
                self.memory.store(COMMIT_AT, &low);
                self.memory.store(COMMIT_AT + low.len(), &high);
                self.memory.flush(COMMIT_AT..COMMIT_AT + WORD_BYTES);
            }
            _ => self.memory.write_word(COMMIT_AT, word),
        }
        if self.fault == LogFault::NoFenceAfterCommit { Ok(()) } else { self.memory.fence() }
    }
}

fn record_bytes(payload: usize) -> usize {
    (HEADER_BYTES + payload).next_multiple_of(WORD_BYTES)
}
