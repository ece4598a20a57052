//! SCAN, KEYS and RANDOMKEY.
//!
//! In: a pattern and a place in the device's order of keys. Out: keys. That order does not change while keys come and go, so a
//! cursor is simply a place in it, and a scan finds every key that is there from its start to its end.

use super::errors::{self, Failure};
use super::glob::{self, Case};
use super::operation::{Drive, Lane};
use super::parser::integer;
use super::reply::{Encoder, Reply};
use super::request::Request;
use super::shared::Shared;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_ssd::command::{Command, Completion, ListPosition, NamespaceId, SubmitError};
use headwater_ssd::limits::LIST_KEYS_MAX;

/// Keys that RANDOMKEY picks one of.
const RANDOM_KEYS: u32 = 8;
/// Keys of one step of KEYS.
const KEYS_STEP: u32 = 1_024;
/// Keys of one SCAN that names no count.
const SCAN_KEYS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Scan,
    Keys,
    Random,
}

/// Keys of a namespace.
#[derive(Debug)]
pub(crate) struct Listing {
    namespace: NamespaceId,
    purpose: Purpose,
    pattern: Option<Bytes>,
    /// Whether keys of the wanted type can exist: all values are strings.
    any_type: bool,
    from: ListPosition,
    keys_max: u32,
    found: Vec<Bytes>,
    bytes: usize,
    submitted: bool,
    finished: bool,
    failed: Option<Failure>,
}

impl Listing {
    /// Reads SCAN's arguments.
    pub(crate) fn scan(request: &Request<'_>, namespace: NamespaceId) -> Result<Self, Failure> {
        let cursor = std::str::from_utf8(request.arg(1)).ok().and_then(|text| text.parse().ok());
        let mut listing = Self::new(namespace, Purpose::Scan, SCAN_KEYS);
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
                    listing.keys_max = u32::try_from(count).unwrap_or(u32::MAX).min(LIST_KEYS_MAX);
                }
                b"match" => listing.pattern = Some(request.bytes(at + 1)),
                b"type" => listing.any_type = request.is(at + 1, "string"),
                _ => return Err(errors::SYNTAX),
            }
        }
        Ok(listing)
    }

    /// All keys that match.
    pub(crate) fn keys(namespace: NamespaceId, pattern: Bytes) -> Self {
        let mut listing = Self::new(namespace, Purpose::Keys, KEYS_STEP);
        listing.pattern = Some(pattern);
        listing
    }

    /// Some key from behind a place.
    pub(crate) fn random(namespace: NamespaceId, from: u64) -> Self {
        let mut listing = Self::new(namespace, Purpose::Random, RANDOM_KEYS);
        listing.from = ListPosition(from);
        listing
    }

    fn new(namespace: NamespaceId, purpose: Purpose, keys_max: u32) -> Self {
        Self {
            namespace,
            purpose,
            pattern: None,
            any_type: true,
            from: ListPosition::START,
            keys_max,
            found: Vec::new(),
            bytes: 0,
            submitted: false,
            finished: false,
            failed: None,
        }
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        if let Some(failure) = self.failed.take() {
            return Drive::Done(failure.into());
        }
        if self.finished {
            return Drive::Done(self.reply(lane));
        }
        if self.submitted {
            return Drive::Waiting;
        }
        let command = Command::List { from: self.from, keys_max: self.keys_max };
        match lane.submit(0, self.namespace, command) {
            Ok(()) => {
                self.submitted = true;
                Drive::Waiting
            }
            Err(SubmitError::Busy(_)) => Drive::Busy,
            Err(SubmitError::Refused(status)) => Drive::Done(errors::from_status(status).into()),
        }
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, completion: Completion, shared: &Shared) {
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
                .is_none_or(|pattern| glob::matches(pattern, &listed.key, Case::Sensitive));
            if alive && wanted && self.any_type {
                self.bytes += listed.key.len() + 16;
                self.found.push(listed.key);
            }
        }
        if self.bytes > super::limits::OUTPUT_BUFFER_BYTES_MAX {
            self.failed = Some(Failure::fixed("ERR too many keys for one reply; use SCAN"));
        }
        let began_at_start = self.from == ListPosition::START;
        let next = completion.next;
        self.from = next.unwrap_or(ListPosition::START);
        self.finished = match self.purpose {
            Purpose::Scan => true,
            Purpose::Keys => next.is_none(),
            // Nothing behind a random place: once more from the front.
            Purpose::Random => !self.found.is_empty() || (began_at_start && next.is_none()),
        };
    }

    fn reply<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Reply {
        let found = std::mem::take(&mut self.found);
        if self.purpose == Purpose::Random {
            if found.is_empty() {
                return Reply::Null;
            }
            let pick = lane.shared.random.usize(..found.len());
            return Reply::Bulk(found[pick].to_vec());
        }
        let mut out = Vec::with_capacity(self.bytes + 32);
        let mut encoder = Encoder::new(&mut out, lane.protocol);
        if self.purpose == Purpose::Scan {
            encoder.array(2);
            encoder.text(&self.from.0.to_string());
        }
        encoder.array(found.len());
        for key in &found {
            encoder.bulk(key);
        }
        Reply::Encoded(out)
    }
}
