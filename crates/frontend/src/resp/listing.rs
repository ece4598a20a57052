//! The commands SCAN, KEYS and RANDOMKEY.
//!
//! Input: a pattern and a position in the device's order of keys. Output: keys. That order does not change when keys
//! are created or deleted, so a cursor is a position in it, and a scan returns every key that exists from its start to
//! its end.

use super::errors::{self, ErrorReply};
use super::glob::{self, CaseSensitivity};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::parser::integer;
use super::reply::RespReply;
use super::request::RespRequest;
use super::state::RespState;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::narrow;
use headwater_ssd::command::{ListPosition, NamespaceId, SsdCommand, SsdCompletion, SubmitError};
use headwater_ssd::limits::LIST_KEYS_MAX;

/// The number of keys from which RANDOMKEY picks one.
const RANDOM_KEYS: u32 = 8;
/// The number of keys in one step of KEYS.
const KEYS_STEP: u32 = 1_024;
/// The number of keys in one SCAN without a count.
const SCAN_KEYS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingPurpose {
    Scan,
    Keys,
    Random,
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
    found: Vec<Bytes>,
    bytes: usize,
    submitted: bool,
    finished: bool,
    failed: Option<ErrorReply>,
}

impl KeyListing {
    /// Parses SCAN's arguments.
    pub(crate) fn scan(request: &RespRequest<'_>, namespace: NamespaceId) -> Result<Self, ErrorReply> {
        let cursor = std::str::from_utf8(request.arg(1)).ok().and_then(|text| text.parse().ok());
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
        let mut listing = Self::new(namespace, ListingPurpose::Keys, KEYS_STEP);
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
            found: Vec::new(),
            bytes: 0,
            submitted: false,
            finished: false,
            failed: None,
        }
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        if let Some(failure) = self.failed.take() {
            return DriveResult::Done(failure.into());
        }
        if self.finished {
            return DriveResult::Done(self.reply(context));
        }
        if self.submitted {
            return DriveResult::Waiting;
        }
        let command = SsdCommand::List { position: self.from, keys_max: self.keys_max };
        match context.submit(0, self.namespace, command) {
            Ok(()) => {
                self.submitted = true;
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => DriveResult::Done(errors::from_status(status).into()),
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: SsdCompletion, shared: &RespState) {
        self.submitted = false;
        if !completion.status.is_success() {
            self.failed = Some(errors::from_status(completion.status));
            return;
        }
        for listed in completion.keys {
            let alive = listed.expiry_ms == 0 || listed.expiry_ms > shared.wall.0;
            let wanted = self
                .pattern
                .as_ref()
                .is_none_or(|pattern| glob::matches(pattern, &listed.key, CaseSensitivity::Sensitive));
            if alive && wanted && self.type_matches {
                self.bytes += listed.key.len() + 16;
                self.found.push(listed.key);
            }
        }
        if self.bytes > super::limits::OUTPUT_BUFFER_BYTES_MAX {
            self.failed = Some(ErrorReply::fixed("ERR too many keys for one reply; use SCAN"));
        }
        let began_at_start = self.from == ListPosition::START;
        let next = completion.next_position;
        self.from = next.unwrap_or(ListPosition::START);
        self.finished = match self.purpose {
            ListingPurpose::Scan => true,
            ListingPurpose::Keys => next.is_none(),
            // No key behind the random position: list once more from the start.
            ListingPurpose::Random => !self.found.is_empty() || (began_at_start && next.is_none()),
        };
    }

    fn reply<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> RespReply {
        let found = std::mem::take(&mut self.found);
        if self.purpose == ListingPurpose::Random {
            if found.is_empty() {
                return RespReply::Null;
            }
            let pick = context.shared.random.usize(..found.len());
            return RespReply::Bulk(found[pick].to_vec());
        }
        let mut out = Vec::with_capacity(self.bytes + 32);
        let mut encoder = ReplyEncoder::new(&mut out, context.protocol);
        if self.purpose == ListingPurpose::Scan {
            encoder.array(2);
            encoder.text(&self.from.0.to_string());
        }
        encoder.array(found.len());
        for key in &found {
            encoder.bulk(key);
        }
        RespReply::Encoded(out)
    }
}
