//! Requests that lie side by side on the device and go there as one command.
//!
//! In: extents of requests that wait. Out: which group a new one joins, and at which side. Invariant: the members of a
//! group are of one kind and one class, touch each other without gap or overlap, and are together no longer than one
//! command may be.

use super::Class;
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

/// Whether requests are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// Each goes alone.
    #[default]
    Off,
    /// Reads with reads and writes with writes that wait and lie side by side. Needs a device that takes several buffers
    /// in one command; on others nothing is joined.
    Adjacent,
}

/// A request that waits, or a group of them, as a run of bytes on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Only the same sort is joined: a number that reads, or writes of one kind, have in common.
    pub sort: u8,
    /// Only the same class is joined.
    pub class: Class,
    /// The first byte.
    pub start: u64,
    /// How many.
    pub bytes: u64,
    /// How many buffers.
    pub segments: u32,
    /// When it should be answered; a group never has to wait for a member with less time than it had itself.
    pub deadline: Option<Nanos>,
}

impl Extent {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    fn edge(&self, at: u64) -> Edge {
        (self.sort, self.class, at)
    }
}

/// At which side of a group its new member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before all others.
    Front,
    /// Behind all others.
    Back,
}

/// Where a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The slot by which the group waits.
    pub group: u32,
    /// The side.
    pub side: Side,
}

type Edge = (u8, Class, u64);

/// The groups that wait.
#[derive(Debug, Default)]
pub struct Merger {
    groups: BTreeMap<u32, Extent>,
    by_start: BTreeMap<Edge, u32>,
    by_end: BTreeMap<Edge, u32>,
}

impl Merger {
    /// Joins a request to a group that waits, if there is one beside it and room in it. Else the caller lets it wait and
    /// says so with [`open`](Self::open).
    pub fn join(&mut self, new: &Extent, bytes_max: u64, segments_max: u32) -> Option<Joined> {
        let behind = self.by_end.get(&new.edge(new.start)).map(|&group| (group, Side::Back));
        let before = self.by_start.get(&new.edge(new.end())).map(|&group| (group, Side::Front));
        let (group, side) = behind.into_iter().chain(before).find(|&(group, _)| {
            self.groups.get(&group).is_some_and(|have| {
                have.bytes + new.bytes <= bytes_max
                    && have.segments + new.segments <= segments_max
                    && (new.deadline.is_none() || have.deadline.is_some_and(|had| Some(had) <= new.deadline))
            })
        })?;
        let mut extent = self.take(group)?;
        extent.start = extent.start.min(new.start);
        extent.bytes += new.bytes;
        extent.segments += new.segments;
        self.open(group, extent);
        Some(Joined { group, side })
    }

    /// A request waits and may be joined from now on.
    pub fn open(&mut self, slot: u32, extent: Extent) {
        self.by_start.insert(extent.edge(extent.start), slot);
        self.by_end.insert(extent.edge(extent.end()), slot);
        self.groups.insert(slot, extent);
    }

    /// A request waits no longer.
    pub fn close(&mut self, slot: u32) {
        self.take(slot);
    }

    fn take(&mut self, slot: u32) -> Option<Extent> {
        let extent = self.groups.remove(&slot)?;
        // Another group may have the same edge: two requests for the same place wait.
        for (edges, at) in [(&mut self.by_start, extent.start), (&mut self.by_end, extent.end())] {
            if edges.get(&extent.edge(at)) == Some(&slot) {
                edges.remove(&extent.edge(at));
            }
        }
        Some(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(sort: u8, start: u64, bytes: u64) -> Extent {
        Extent { sort, class: Class::FIRST, start, bytes, segments: 1, deadline: None }
    }

    #[test]
    fn neighbours_of_one_sort_and_class_join_at_both_sides() {
        let mut merger = Merger::default();
        merger.open(5, extent(1, 8_192, 4_096));
        let joined = |group, side| Some(Joined { group, side });
        assert_eq!(merger.join(&extent(1, 12_288, 4_096), 1 << 20, 8), joined(5, Side::Back));
        assert_eq!(merger.join(&extent(1, 4_096, 4_096), 1 << 20, 8), joined(5, Side::Front));
        assert_eq!(merger.join(&extent(2, 16_384, 4_096), 1 << 20, 8), None, "another sort");
        let other = Extent { class: Class::LAST, ..extent(1, 16_384, 4_096) };
        assert_eq!(merger.join(&other, 1 << 20, 8), None, "another class");
        assert_eq!(merger.join(&extent(1, 20_480, 4_096), 1 << 20, 8), None, "a gap");
        assert_eq!(merger.join(&extent(1, 16_384, 4_096), 12_288, 8), None, "too long");
        assert_eq!(merger.join(&extent(1, 16_384, 4_096), 1 << 20, 3), None, "too many buffers");
        merger.close(5);
        assert_eq!(merger.join(&extent(1, 16_384, 4_096), 1 << 20, 8), None, "it waits no longer");
    }

    #[test]
    fn a_member_with_less_time_than_its_group_goes_alone() {
        let mut merger = Merger::default();
        merger.open(1, Extent { deadline: Some(Nanos(100)), ..extent(1, 0, 512) });
        let hasty = Extent { deadline: Some(Nanos(99)), ..extent(1, 512, 512) };
        assert_eq!(merger.join(&hasty, 1 << 20, 8), None);
        let calm = Extent { deadline: Some(Nanos(101)), ..extent(1, 512, 512) };
        assert!(merger.join(&calm, 1 << 20, 8).is_some());
    }

    #[test]
    fn groups_over_the_same_place_do_not_lose_each_other() {
        let mut merger = Merger::default();
        merger.open(1, extent(1, 0, 512));
        merger.open(2, extent(1, 0, 512));
        merger.close(1);
        assert_eq!(
            merger.join(&extent(1, 512, 512), 1 << 20, 8),
            Some(Joined { group: 2, side: Side::Back })
        );
        merger.close(2);
        assert_eq!(merger.join(&extent(1, 1_024, 512), 1 << 20, 8), None);
    }
}
