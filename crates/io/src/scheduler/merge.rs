//! Merges requests for adjacent ranges of the device into one command.
//!
//! Input: extents of waiting requests. Output: the group that a new request joins, and the side. Invariant: the members
//! of a group have one kind and one class, are adjacent without gap or overlap, and together do not exceed the limits
//! of one command.

use super::RequestClass;
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

/// The merging policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergePolicy {
    /// Each request is its own command.
    #[default]
    Off,
    /// Adjacent waiting reads, and adjacent waiting writes, become one command. It needs a device that accepts several
    /// buffers in one command; elsewhere nothing is merged.
    Adjacent,
}

/// A waiting request or group as a run of bytes on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeExtent {
    /// The merge key: only equal keys are merged, as of two reads, or of two writes of one kind.
    pub key: u8,
    /// The class: only equal classes are merged.
    pub class: RequestClass,
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The number of buffers.
    pub segments: usize,
    /// The deadline; a group accepts no member with an earlier deadline than its own.
    pub deadline: Option<Nanos>,
}

impl MergeExtent {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    fn edge(&self, at: u64) -> ExtentEdge {
        (self.key, self.class, at)
    }
}

/// The side of a group at which its new member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeSide {
    /// Before all other members.
    Front,
    /// After all other members.
    Back,
}

/// The result of joining a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeResult {
    /// The slot of the group's head.
    pub group: u32,
    /// The side of the new member.
    pub side: MergeSide,
}

type ExtentEdge = (u8, RequestClass, u64);

/// The waiting groups.
#[derive(Debug, Default)]
pub struct RequestMerger {
    groups: BTreeMap<u32, MergeExtent>,
    by_start: BTreeMap<ExtentEdge, u32>,
    by_end: BTreeMap<ExtentEdge, u32>,
}

impl RequestMerger {
    /// Adds a request to an adjacent waiting group with room, if there is one. Otherwise the caller makes it wait and
    /// calls [`open`](Self::open).
    pub fn join(&mut self, new: &MergeExtent, bytes_max: u64, segments_max: usize) -> Option<MergeResult> {
        let behind = self.by_end.get(&new.edge(new.start)).map(|&group| (group, MergeSide::Back));
        let before = self.by_start.get(&new.edge(new.end())).map(|&group| (group, MergeSide::Front));
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
        Some(MergeResult { group, side })
    }

    /// Adds a waiting request that further requests may join.
    pub fn open(&mut self, slot: u32, extent: MergeExtent) {
        self.by_start.insert(extent.edge(extent.start), slot);
        self.by_end.insert(extent.edge(extent.end()), slot);
        self.groups.insert(slot, extent);
    }

    /// Removes a request that no longer waits.
    pub fn close(&mut self, slot: u32) {
        self.take(slot);
    }

    fn take(&mut self, slot: u32) -> Option<MergeExtent> {
        let extent = self.groups.remove(&slot)?;
        // Another group may have the same edge: two requests for the same range wait.
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

    fn extent(sort: u8, start: u64, bytes: u64) -> MergeExtent {
        MergeExtent { key: sort, class: RequestClass::FIRST, start, bytes, segments: 1, deadline: None }
    }

    #[test]
    fn adjacent_requests_of_one_key_and_class_join_at_both_sides() {
        let mut merger = RequestMerger::default();
        merger.open(5, extent(1, 8_192, 4_096));
        let joined = |group, side| Some(MergeResult { group, side });
        assert_eq!(merger.join(&extent(1, 12_288, 4_096), 1 << 20, 8), joined(5, MergeSide::Back));
        assert_eq!(merger.join(&extent(1, 4_096, 4_096), 1 << 20, 8), joined(5, MergeSide::Front));
        assert_eq!(merger.join(&extent(2, 16_384, 4_096), 1 << 20, 8), None, "different keys were merged");
        let other = MergeExtent { class: RequestClass::LAST, ..extent(1, 16_384, 4_096) };
        assert_eq!(merger.join(&other, 1 << 20, 8), None, "different classes were merged");
        assert_eq!(merger.join(&extent(1, 20_480, 4_096), 1 << 20, 8), None, "a gap was merged");
        assert_eq!(merger.join(&extent(1, 16_384, 4_096), 12_288, 8), None, "a merged group is too long");
        assert_eq!(merger.join(&extent(1, 16_384, 4_096), 1 << 20, 3), None, "a group has too many buffers");
        merger.close(5);
        assert_eq!(
            merger.join(&extent(1, 16_384, 4_096), 1 << 20, 8),
            None,
            "a request joined a closed group"
        );
    }

    #[test]
    fn request_with_an_earlier_deadline_than_the_group_does_not_join() {
        let mut merger = RequestMerger::default();
        merger.open(1, MergeExtent { deadline: Some(Nanos(100)), ..extent(1, 0, 512) });
        let hasty = MergeExtent { deadline: Some(Nanos(99)), ..extent(1, 512, 512) };
        assert_eq!(merger.join(&hasty, 1 << 20, 8), None);
        let calm = MergeExtent { deadline: Some(Nanos(101)), ..extent(1, 512, 512) };
        assert!(merger.join(&calm, 1 << 20, 8).is_some());
    }

    #[test]
    fn groups_over_the_same_range_stay_separate() {
        let mut merger = RequestMerger::default();
        merger.open(1, extent(1, 0, 512));
        merger.open(2, extent(1, 0, 512));
        merger.close(1);
        assert_eq!(
            merger.join(&extent(1, 512, 512), 1 << 20, 8),
            Some(MergeResult { group: 2, side: MergeSide::Back })
        );
        merger.close(2);
        assert_eq!(merger.join(&extent(1, 1_024, 512), 1 << 20, 8), None);
    }
}
