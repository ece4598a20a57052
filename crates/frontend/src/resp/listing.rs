//! The commands SCAN, KEYS and RANDOMKEY.
//!
//! Input: a pattern and a position in the device's order of keys. Output: keys. That order does not change when keys
//! are created or deleted, so a cursor is a position in it, and a scan returns every key that exists from its start to
//! its end.

use super::errors::{self, ErrorReply};
use super::glob::{CaseSensitivity, GlobMatch};
use super::limits::LONG_STEPS_MAX;
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::parser::integer;
use super::reply::{RespReply, RespVersion};
use super::request::RespRequest;
use super::state::RespState;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::{narrow, to_usize};
use headwater_ssd::command::{ListPosition, ListedKey, NamespaceId, SsdCommand, SsdCompletion, SubmitError};
use headwater_ssd::limits::LIST_KEYS_MAX;
use std::collections::VecDeque;

/// The number of keys from which RANDOMKEY picks one.
const RANDOM_KEYS: u32 = 8;
/// The largest number of keys in one step.
const STEP_KEYS_MAX: u32 = 256;
/// The number of keys in the first step, before their lengths are known.
const STEP_KEYS_FIRST: u32 = 64;
/// Bytes of keys in one step, on average.
const STEP_BYTES: usize = 128 << 10;
/// Bytes of keys from which SCAN returns fewer than its count.
const SCAN_BYTES: usize = 1 << 20;
/// Bytes of the keys of one reply.
const LISTING_BYTES_MAX: usize = 256 << 20;
/// Bytes from which keys are encoded into the next piece of the reply.
const PIECE_BYTES: usize = 64 << 10;
/// The largest number of bytes around a key in a reply.
const BULK_BYTES: usize = 16;
/// The number of keys in one SCAN without a count.
const SCAN_KEYS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingPurpose {
    Scan,
    Keys,
    Random,
}

/// The state of the present step: one command to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingStep {
    /// It may be submitted.
    Due,
    /// Its completion is outstanding.
    Submitted,
    /// It is done; the next one is due in a later turn.
    Done,
}

/// Parses a cursor as Redis does, with the C function `strtoul`: a sign is allowed, no digits are zero, and the text ends at
/// a zero byte.
fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = text.split(|&byte| byte == 0).next()?;
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let cursor: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if negative { cursor.wrapping_neg() } else { cursor })
}

/// A listing of a namespace's keys.
#[derive(Debug)]
pub(crate) struct KeyListing {
    namespace: NamespaceId,
    purpose: ListingPurpose,
    pattern: Option<Bytes>,
    /// True if keys of the requested type can exist: all values are strings.
    type_matches: bool,
    from: ListPosition,
    keys_max: u32,
    /// Keys that the device listed and that are not compared with the pattern yet.
    listed: VecDeque<ListedKey>,
    /// The comparison of the first of them, if it has begun.
    comparison: GlobMatch,
    /// Keys compared with the pattern.
    compared: u64,
    /// Bytes of these keys.
    compared_bytes: usize,
    /// The keys from which RANDOMKEY picks one.
    found: Vec<Bytes>,
    /// The encoded keys, and their number.
    pieces: Vec<Vec<u8>>,
    count: usize,
    bytes: usize,
    step: ListingStep,
    finished: bool,
    failed: Option<ErrorReply>,
}

impl KeyListing {
    /// Parses SCAN's arguments.
    pub(crate) fn scan(request: &RespRequest<'_>, namespace: NamespaceId) -> Result<Self, ErrorReply> {
        let cursor = parse_cursor(request.arg(1));
        let mut listing = Self::new(namespace, ListingPurpose::Scan, SCAN_KEYS);
        listing.from = ListPosition(cursor.ok_or(errors::CURSOR)?);
        for at in (2..request.len()).step_by(2) {
            if at + 1 == request.len() {
                return Err(errors::SYNTAX);
            }
            match &request.lower(at)[..] {
                b"count" => {
                    let count = integer(request.arg(at + 1)).ok_or(errors::NOT_AN_INTEGER)?;
                    if count < 1 {
                        return Err(errors::SYNTAX);
                    }
                    listing.keys_max = narrow(count.min(LIST_KEYS_MAX.into()));
                }
                b"match" => listing.pattern = Some(request.bytes(at + 1)),
                b"type" => listing.type_matches = request.arg_is(at + 1, "string"),
                _ => return Err(errors::SYNTAX),
            }
        }
        Ok(listing)
    }

    /// Creates a listing of all keys that match a pattern.
    pub(crate) fn keys(namespace: NamespaceId, pattern: Bytes) -> Self {
        let mut listing = Self::new(namespace, ListingPurpose::Keys, u32::MAX);
        listing.pattern = Some(pattern);
        listing
    }

    /// Creates a listing that picks one key behind a random position.
    pub(crate) fn random(namespace: NamespaceId, from: u64) -> Self {
        let mut listing = Self::new(namespace, ListingPurpose::Random, RANDOM_KEYS);
        listing.from = ListPosition(from);
        listing
    }

    fn new(namespace: NamespaceId, purpose: ListingPurpose, keys_max: u32) -> Self {
        Self {
            namespace,
            purpose,
            pattern: None,
            type_matches: true,
            from: ListPosition::START,
            keys_max,
            listed: VecDeque::new(),
            comparison: GlobMatch::default(),
            compared: 0,
            compared_bytes: 0,
            found: Vec::new(),
            pieces: Vec::new(),
            count: 0,
            bytes: 0,
            step: ListingStep::Due,
            finished: false,
            failed: None,
        }
    }

    /// Returns the bytes of the keys that were found.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.bytes
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        if self.step == ListingStep::Submitted {
            return DriveResult::Waiting;
        }
        if self.failed.is_none() && !self.compare(context.shared) {
            return DriveResult::Again;
        }
        if let Some(failure) = self.failed.take() {
            return DriveResult::Done(failure.into());
        }
        if self.finished || !self.found.is_empty() {
            return DriveResult::Done(self.reply(context));
        }
        // One step a turn: the device reads a page for each key.
        if std::mem::replace(&mut self.step, ListingStep::Due) == ListingStep::Done {
            return DriveResult::Again;
        }
        let keys = self.step_keys();
        let more = self.mean_bytes() * keys as usize;
        if !context.admits_reply(self.bytes, more) {
            // A listing that holds memory and waits for more could wait for another one that does the same.
            if context.own_replies == 0 && self.bytes > 0 {
                context.stop_waiting();
                return DriveResult::Done(errors::TOO_MANY_KEYS.into());
            }
            return DriveResult::NoRoom;
        }
        let command = SsdCommand::List { position: self.from, keys_max: keys };
        match context.submit(0, self.namespace, command) {
            Ok(()) => {
                self.step = ListingStep::Submitted;
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => DriveResult::Done(errors::from_status(status).into()),
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: SsdCompletion) {
        self.step = ListingStep::Done;
        if !completion.status.is_success() {
            self.failed = Some(errors::from_status(completion.status));
            return;
        }
        let began_at_start = self.from == ListPosition::START;
        let next = completion.next_position;
        self.compared += completion.keys.len() as u64;
        self.compared_bytes += completion.keys.iter().map(|listed| listed.key.len()).sum::<usize>();
        self.from = next.unwrap_or(ListPosition::START);
        self.finished = match self.purpose {
            ListingPurpose::Scan => {
                let enough = self.compared >= u64::from(self.keys_max) || self.compared_bytes >= SCAN_BYTES;
                next.is_none() || enough
            }
            ListingPurpose::Keys => next.is_none(),
            // No key behind the random position: list once more from the start.
            ListingPurpose::Random => began_at_start && next.is_none(),
        };
        self.listed = completion.keys.into();
    }

    /// Returns the mean length of the keys so far, with the bytes that surround each in the reply.
    fn mean_bytes(&self) -> usize {
        let mean = (self.compared_bytes as u64).checked_div(self.compared).unwrap_or(0);
        to_usize(mean) + BULK_BYTES
    }

    /// Returns the number of keys of the next step.
    fn step_keys(&self) -> u32 {
        let step = if self.compared == 0 {
            STEP_KEYS_FIRST
        } else {
            narrow::<usize, u32>(STEP_BYTES / self.mean_bytes()).clamp(1, STEP_KEYS_MAX)
        };
        let left = u64::from(self.keys_max).saturating_sub(self.compared).max(1);
        step.min(narrow(left.min(u64::from(u32::MAX))))
    }

    /// Compares listed keys with the pattern. Returns false if that takes longer than one turn may.
    fn compare(&mut self, shared: &RespState) -> bool {
        let mut steps = LONG_STEPS_MAX;
        while let Some(listed) = self.listed.front() {
            let alive = listed.expiry_ms == 0 || listed.expiry_ms > shared.wall.0;
            let wanted = match &self.pattern {
                Some(pattern) if alive => {
                    self.comparison.advance(pattern, &listed.key, CaseSensitivity::Sensitive, &mut steps)
                }
                _ => Some(alive),
            };
            let Some(wanted) = wanted else { return false };
            self.comparison = GlobMatch::default();
            if let Some(listed) = self.listed.pop_front()
                && wanted
                && self.type_matches
            {
                self.add(listed.key);
            }
        }
        true
    }

    fn add(&mut self, key: Bytes) {
        self.bytes += key.len() + BULK_BYTES;
        if self.bytes > LISTING_BYTES_MAX {
            self.failed = Some(errors::TOO_MANY_KEYS);
        }
        if self.purpose == ListingPurpose::Random {
            self.found.push(key);
            return;
        }
        if self.pieces.last().is_none_or(|piece| piece.len() >= PIECE_BYTES) {
            self.pieces.push(Vec::new());
        }
        if let Some(piece) = self.pieces.last_mut() {
            // A bulk string is the same in both versions of the protocol.
            ReplyEncoder::new(piece, RespVersion::Resp2).bulk(&key);
            self.count += 1;
        }
    }

    fn reply<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> RespReply {
        if self.purpose == ListingPurpose::Random {
            if self.found.is_empty() {
                return RespReply::Null;
            }
            let pick = context.shared.random.usize(..self.found.len());
            return RespReply::Bulk(self.found[pick].to_vec());
        }
        let mut header = Vec::new();
        let mut encoder = ReplyEncoder::new(&mut header, context.protocol);
        if self.purpose == ListingPurpose::Scan {
            encoder.array(2);
            encoder.text(&self.from.0.to_string());
        }
        encoder.array(self.count);
        let pieces = std::mem::take(&mut self.pieces).into_iter();
        RespReply::Parts(std::iter::once(header).chain(pieces).map(RespReply::Encoded).collect())
    }
}
