//! The requests of a handle that are not answered: a table whose places are the tokens that queues see.
//!
//! In: requests. Out: places, which stay their own until they are given back. Invariant: what the short way touches of a
//! request is one small entry; its story lies beside it, for the long way.

use super::request::{Operation, Request};
use crate::command::Data;
use crate::completion::SizeClass;
use crate::scheduler::Class;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;

/// What a request is to the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nobody's place.
    Free,
    /// One command, in flight, whose answer is the caller's.
    Plain,
    /// Waits, alone or at the head of a group.
    Waiting,
    /// Waits as a member of a group; the head is in its story.
    Member,
    /// One command in flight for it and the members of its group.
    Leading,
    /// Several commands, one after the other; some in flight.
    Divided,
    /// A command for a part of another; which one is in its story.
    Part,
}

/// What every request has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The caller's token; of a free place, the next free one.
    pub(super) token: u64,
    pub(super) kind: Kind,
    /// The queue it is or goes to, by place among the handle's.
    pub(super) lane: u32,
}

/// What a request has on the long way.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// While it waits, and of a divided one all the time.
    pub(super) data: Data,
    pub(super) class: Class,
    pub(super) arrived: Nanos,
    /// When it is given up.
    pub(super) deadline: Option<Nanos>,
    /// Given to the device.
    pub(super) submitted: Nanos,
    pub(super) size: SizeClass,
    /// Of a part, the whole; of a member, the head of its group.
    pub(super) head: u32,
    /// Of the head of a group: the others, in the order of their places on the device, itself among them.
    pub(super) members: Vec<u32>,
    /// Of a divided one: bytes given to the device, parts in flight, and the first failure.
    pub(super) given: u64,
    pub(super) parts: u32,
    pub(super) failure: Option<Status>,
    /// It goes alone: a group that it was in failed.
    pub(super) alone: bool,
    /// Its answer is kept for a blocking call.
    pub(super) awaited: bool,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            operation: Operation::Flush,
            offset: 0,
            bytes: 0,
            data: Data::None,
            class: Class::FIRST,
            arrived: Nanos::ZERO,
            deadline: None,
            submitted: Nanos::ZERO,
            size: SizeClass::default(),
            head: NOWHERE,
            members: Vec::new(),
            given: 0,
            parts: 0,
            failure: None,
            alone: false,
            awaited: false,
        }
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Slots {
    entries: Vec<Entry>,
    stories: Vec<Story>,
    free: u32,
    used: u32,
}

impl Slots {
    pub(super) fn new(places: u32) -> Self {
        let mut slots = Self { entries: Vec::new(), stories: Vec::new(), free: NOWHERE, used: 0 };
        slots.grow(places);
        slots
    }

    /// At least so many places.
    pub(super) fn grow(&mut self, places: u32) {
        let have = u32::try_from(self.entries.len()).unwrap_or(NOWHERE);
        let all = places.max(have) as usize;
        self.stories.resize_with(all, Story::default);
        self.entries.resize(all, Entry { token: 0, kind: Kind::Free, lane: 0 });
        for place in (have..places).rev() {
            if let Some(entry) = self.entries.get_mut(place as usize) {
                entry.token = u64::from(self.free);
            }
            self.free = place;
        }
    }

    /// Places that are taken.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// A place for a request.
    #[inline]
    pub(super) fn take(&mut self, token: u64, kind: Kind, lane: u32) -> Option<u32> {
        let place = self.free;
        let entry = self.entries.get_mut(place as usize)?;
        // A free place names the next, which is 32 bits.
        self.free = u32::try_from(entry.token).unwrap_or(NOWHERE);
        *entry = Entry { token, kind, lane };
        self.used += 1;
        Some(place)
    }

    /// A place back; its token.
    #[inline]
    pub(super) fn give_back(&mut self, place: u32) -> u64 {
        let Some(entry) = self.entries.get_mut(place as usize) else {
            return 0;
        };
        let token = entry.token;
        *entry = Entry { token: u64::from(self.free), kind: Kind::Free, lane: 0 };
        self.free = place;
        self.used -= 1;
        token
    }

    #[inline]
    pub(super) fn entry(&self, place: u32) -> Option<&Entry> {
        self.entries.get(place as usize)
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, place: u32) -> Option<&mut Entry> {
        self.entries.get_mut(place as usize)
    }

    pub(super) fn kind(&self, place: u32) -> Kind {
        self.entry(place).map_or(Kind::Free, |entry| entry.kind)
    }

    pub(super) fn set_kind(&mut self, place: u32, kind: Kind) {
        if let Some(entry) = self.entry_mut(place) {
            entry.kind = kind;
        }
    }

    pub(super) fn lane(&self, place: u32) -> u32 {
        self.entry(place).map_or(NOWHERE, |entry| entry.lane)
    }

    /// # Panics
    /// For a place that is none: places come from [`take`](Self::take).
    pub(super) fn story(&self, place: u32) -> &Story {
        &self.stories[place as usize]
    }

    /// # Panics
    /// As [`story`](Self::story).
    pub(super) fn story_mut(&mut self, place: u32) -> &mut Story {
        &mut self.stories[place as usize]
    }

    /// The story of a request begins.
    pub(super) fn tell(&mut self, place: u32, request: Request, now: Nanos) {
        let size = request.work().class();
        let story = self.story_mut(place);
        let members = std::mem::take(&mut story.members);
        *story = Story {
            operation: request.operation,
            offset: request.offset,
            bytes: request.bytes,
            data: request.data,
            class: request.class,
            arrived: now,
            deadline: request.within.map(|span| now.after(span)),
            size,
            members,
            ..Story::default()
        };
        story.members.clear();
    }

    /// Every taken place, for a change of queues.
    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().filter(|entry| entry.kind != Kind::Free)
    }

    /// The parts of a divided request that are in flight.
    pub(super) fn parts_of(&self, whole: u32) -> Vec<u32> {
        let all = self.entries.iter().zip(&self.stories).zip(0..);
        all.filter(|((entry, story), _)| entry.kind == Kind::Part && story.head == whole)
            .map(|(_, place)| place)
            .collect()
    }

    /// The taken place of a token, if there is one: of several the first.
    pub(super) fn find(&self, token: u64) -> Option<u32> {
        let found = |entry: &Entry| entry.token == token && !matches!(entry.kind, Kind::Free | Kind::Part);
        self.entries.iter().position(found).and_then(|place| u32::try_from(place).ok())
    }

    /// Commands in flight that went the long way: when each was given to the device, and its size.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (Nanos, SizeClass)> {
        self.entries.iter().zip(&self.stories).filter_map(|(entry, story)| match entry.kind {
            Kind::Leading | Kind::Part => Some((story.submitted, story.size)),
            _ => None,
        })
    }
}
