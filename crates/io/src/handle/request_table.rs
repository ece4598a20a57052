//! The outstanding requests of a handle: a table whose slot numbers are the tokens of its commands.
//!
//! Input: requests. Output: slots, each held by one request until it is freed. Invariant: the fast path touches one
//! small entry of a request; the rest of its state lies in a separate array for the slow path.

use super::request::{IoRequest, RequestOperation};
use crate::command::TransferData;
use crate::completion::SizeClass;
use crate::scheduler::RequestClass;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// No slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No request.
    Free,
    /// A command of the fast path that was in flight when its queue became shared; its completion goes to the caller
    /// unchanged.
    FastPath,
    /// A request that waits, alone or as the head of a group.
    Waiting,
    /// A waiting member of a group; its pending request names the head.
    Member,
    /// One command in flight for the request and the members of its group.
    Leading,
    /// Several commands in sequence, some of them in flight.
    Divided,
    /// A command for a part of a divided request; its pending request names the whole.
    Part,
}

/// The state of every request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotEntry {
    /// The caller's token; in a free slot, the next free slot.
    pub(super) token: u64,
    pub(super) state: SlotState,
    /// The index of the request's queue in the handle.
    pub(super) queue: u32,
}

/// The state of a request on the slow path.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) operation: RequestOperation,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// The buffers: held here while the request waits, and always if it is divided.
    pub(super) data: TransferData,
    pub(super) class: RequestClass,
    pub(super) arrived_at: Nanos,
    /// The time at which the request is cancelled.
    pub(super) deadline: Option<Nanos>,
    /// The time of submission to the device.
    pub(super) submitted_at: Nanos,
    pub(super) size: SizeClass,
    /// For a part, the divided request; for a member, the head of its group.
    pub(super) head: u32,
    /// For the head of a group, the members by position on the device, the head included.
    pub(super) members: Vec<u32>,
    /// For a divided request: bytes submitted, parts in flight, and the first failure.
    pub(super) submitted_bytes: u64,
    pub(super) parts_in_flight: u32,
    pub(super) failure: Option<Status>,
    /// True after the group of this request failed: it is retried alone.
    pub(super) unmergeable: bool,
    /// True if the completion is kept for a blocking call.
    pub(super) awaited: bool,
}

impl Default for PendingRequest {
    fn default() -> Self {
        Self {
            operation: RequestOperation::Flush,
            offset: 0,
            bytes: 0,
            data: TransferData::None,
            class: RequestClass::FIRST,
            arrived_at: Nanos::ZERO,
            deadline: None,
            submitted_at: Nanos::ZERO,
            size: SizeClass::default(),
            head: NO_SLOT,
            members: Vec::new(),
            submitted_bytes: 0,
            parts_in_flight: 0,
            failure: None,
            unmergeable: false,
            awaited: false,
        }
    }
}

/// The table of outstanding requests.
#[derive(Debug)]
pub(super) struct RequestTable {
    entries: Vec<SlotEntry>,
    pending: Vec<PendingRequest>,
    free: u32,
    used: u32,
}

impl RequestTable {
    pub(super) fn new(count: u32) -> Self {
        let mut slots = Self { entries: Vec::new(), pending: Vec::new(), free: NO_SLOT, used: 0 };
        slots.grow(count);
        slots
    }

    /// Grows the table to at least this many slots.
    pub(super) fn grow(&mut self, count: u32) {
        let have = u32::try_from(self.entries.len()).unwrap_or(NO_SLOT);
        let all = count.max(have) as usize;
        self.pending.resize_with(all, PendingRequest::default);
        self.entries.resize(all, SlotEntry { token: 0, state: SlotState::Free, queue: 0 });
        for slot in (have..count).rev() {
            if let Some(entry) = self.entries.get_mut(slot as usize) {
                entry.token = u64::from(self.free);
            }
            self.free = slot;
        }
    }

    /// Returns the number of slots in use.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Takes a free slot for a request.
    #[inline]
    pub(super) fn take(&mut self, token: u64, kind: SlotState, queue: u32) -> Option<u32> {
        let slot = self.free;
        let entry = self.entries.get_mut(slot as usize)?;
        // A free slot holds the next free one, which fits 32 bits.
        self.free = u32::try_from(entry.token).unwrap_or(NO_SLOT);
        *entry = SlotEntry { token, state: kind, queue };
        self.used += 1;
        Some(slot)
    }

    /// Frees a slot, and returns its token.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) -> u64 {
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return 0;
        };
        let token = entry.token;
        *entry = SlotEntry { token: u64::from(self.free), state: SlotState::Free, queue: 0 };
        self.free = slot;
        self.used -= 1;
        token
    }

    #[inline]
    pub(super) fn entry(&self, slot: u32) -> Option<&SlotEntry> {
        self.entries.get(slot as usize)
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, slot: u32) -> Option<&mut SlotEntry> {
        self.entries.get_mut(slot as usize)
    }

    pub(super) fn state(&self, slot: u32) -> SlotState {
        self.entry(slot).map_or(SlotState::Free, |entry| entry.state)
    }

    pub(super) fn set_state(&mut self, slot: u32, kind: SlotState) {
        if let Some(entry) = self.entry_mut(slot) {
            entry.state = kind;
        }
    }

    pub(super) fn queue(&self, slot: u32) -> u32 {
        self.entry(slot).map_or(NO_SLOT, |entry| entry.queue)
    }

    /// Returns the pending request of a slot.
    ///
    /// # Panics
    /// For a slot that does not exist: slots come from [`take`](Self::take).
    pub(super) fn pending(&self, slot: u32) -> &PendingRequest {
        &self.pending[slot as usize]
    }

    /// Returns the pending request of a slot.
    ///
    /// # Panics
    /// As for [`pending`](Self::pending).
    pub(super) fn pending_mut(&mut self, slot: u32) -> &mut PendingRequest {
        &mut self.pending[slot as usize]
    }

    /// Initialises the pending request of a slot.
    pub(super) fn init_pending(&mut self, slot: u32, request: IoRequest, now: Nanos) {
        let size = request.profile().class();
        let pending = self.pending_mut(slot);
        let members = std::mem::take(&mut pending.members);
        *pending = PendingRequest {
            operation: request.operation,
            offset: request.offset,
            bytes: request.bytes,
            data: request.data,
            class: request.class,
            arrived_at: now,
            deadline: request.timeout.map(|span| now.after(span)),
            size,
            members,
            ..PendingRequest::default()
        };
        pending.members.clear();
    }

    /// Iterates over the entries in use, for a change of queues.
    pub(super) fn used_entries_mut(&mut self) -> impl Iterator<Item = &mut SlotEntry> {
        self.entries.iter_mut().filter(|entry| entry.state != SlotState::Free)
    }

    /// Returns the parts in flight of a divided request.
    pub(super) fn parts_of(&self, whole: u32) -> Vec<u32> {
        let all = self.entries.iter().zip(&self.pending).zip(0..);
        all.filter(|((entry, pending), _)| entry.state == SlotState::Part && pending.head == whole)
            .map(|(_, slot)| slot)
            .collect()
    }

    /// Returns the first slot in use that has this token.
    pub(super) fn find(&self, token: u64) -> Option<u32> {
        let found = |entry: &SlotEntry| {
            entry.token == token && !matches!(entry.state, SlotState::Free | SlotState::Part)
        };
        self.entries.iter().position(found).and_then(|slot| u32::try_from(slot).ok())
    }

    /// Iterates over commands in flight on the slow path: submission time and size.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (Nanos, SizeClass)> {
        self.entries.iter().zip(&self.pending).filter_map(|(entry, pending)| match entry.state {
            SlotState::Leading | SlotState::Part => Some((pending.submitted_at, pending.size)),
            _ => None,
        })
    }
}
