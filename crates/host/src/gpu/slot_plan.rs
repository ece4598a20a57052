//! The transfers of some work, packed into slots of GPU memory.
//!
//! Input: ranges of host memory, in order. Output: for each slot the reads into it, the fills of it, and the writes from it.
//! Invariant: every byte that is written from a slot was read or filled there; ranges of a slot do not overlap; a read or
//! write lies in one registered range.
//!
//! Ranges that follow each other in a memory and in a slot are one transfer: a scatter has one read and many writes, a gather
//! many reads and one write.

/// A consecutive range of host memory, and its place in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostRun {
    /// The address.
    pub(super) address: usize,
    /// The offset in the slot.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// The bytes from the address on that one registration covers.
    room: usize,
}

/// A range of a slot that is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FillRun {
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) value: u8,
}

/// One use of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotUse {
    pub(super) reads: Vec<HostRun>,
    pub(super) fills: Vec<FillRun>,
    pub(super) writes: Vec<HostRun>,
    used: usize,
}

/// The source of some bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotSource {
    /// Bytes at an address of the host.
    Host(usize),
    /// Bytes of this value.
    Value(u8),
}

/// A host range that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotRegistered {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

/// The uses of slots, one behind the other.
pub(super) struct SlotPlan<R> {
    slot_bytes: usize,
    /// Returns the bytes from an address on that one registration covers; 0 for none.
    registered: R,
    uses: Vec<SlotUse>,
}

impl<R: Fn(usize) -> usize> SlotPlan<R> {
    pub(super) fn new(slot_bytes: usize, registered: R) -> Self {
        Self { slot_bytes, registered, uses: Vec::new() }
    }

    /// Adds bytes that come from one source and go to some addresses. They fit a slot.
    pub(super) fn add(
        &mut self,
        source: SlotSource,
        targets: impl Iterator<Item = usize>,
        bytes: usize,
    ) -> Result<(), NotRegistered> {
        let has_room = self.uses.last().is_some_and(|last| last.used + bytes <= self.slot_bytes);
        if !has_room {
            self.uses.push(SlotUse::default());
        }
        let last = self.uses.len() - 1;
        let current = &mut self.uses[last];
        let offset = current.used;
        current.used += bytes;
        match source {
            SlotSource::Host(address) => {
                add_run(&mut current.reads, address, offset, bytes, &self.registered)?;
            }
            SlotSource::Value(value) => match current.fills.last_mut() {
                Some(run) if run.value == value && run.offset + run.bytes == offset => run.bytes += bytes,
                _ => current.fills.push(FillRun { offset, bytes, value }),
            },
        }
        for address in targets {
            add_run(&mut current.writes, address, offset, bytes, &self.registered)?;
        }
        Ok(())
    }

    pub(super) fn into_uses(self) -> Vec<SlotUse> {
        self.uses
    }
}

/// Adds a range: to the last run if it continues it within its registration, else as a run of its own.
fn add_run(
    runs: &mut Vec<HostRun>,
    address: usize,
    offset: usize,
    bytes: usize,
    registered: impl Fn(usize) -> usize,
) -> Result<(), NotRegistered> {
    if let Some(last) = runs.last_mut()
        && last.address + last.bytes == address
        && last.offset + last.bytes == offset
        && last.bytes + bytes <= last.room
    {
        last.bytes += bytes;
        return Ok(());
    }
    let room = registered(address);
    if room < bytes {
        return Err(NotRegistered { address, bytes });
    }
    runs.push(HostRun { address, offset, bytes, room });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[HostRun]) -> Vec<(usize, usize, usize)> {
        of.iter().map(|run| (run.address, run.offset, run.bytes)).collect()
    }

    /// Returns the bytes to the end of a registration: there are two, at 1,000 to 2,000 and right behind it to 9,000.
    fn registered(address: usize) -> usize {
        match address {
            1_000..2_000 => 2_000 - address,
            2_000..9_000 => 9_000 - address,
            _ => 0,
        }
    }

    #[test]
    fn scatter_has_one_read_and_gather_one_write_for_each_slot() {
        let mut plan = SlotPlan::new(100, registered);
        for at in (0..120).step_by(40) {
            plan.add(SlotSource::Host(2_000 + at), [5_000 + 2 * at].into_iter(), 40).unwrap();
        }
        let uses = plan.into_uses();
        assert_eq!(uses.len(), 2);
        assert_eq!(runs(&uses[0].reads), [(2_000, 0, 80)]);
        assert_eq!(runs(&uses[0].writes), [(5_000, 0, 40), (5_080, 40, 40)]);
        assert_eq!(
            (runs(&uses[1].reads), runs(&uses[1].writes)),
            (vec![(2_080, 0, 40)], vec![(5_160, 0, 40)])
        );
        let mut plan = SlotPlan::new(100, registered);
        for at in (0..80).step_by(40) {
            plan.add(SlotSource::Host(5_000 + 2 * at), [2_000 + at].into_iter(), 40).unwrap();
        }
        let uses = plan.into_uses();
        assert_eq!(runs(&uses[0].writes), [(2_000, 0, 80)]);
        assert_eq!(uses[0].reads.len(), 2);
    }

    #[test]
    fn transfer_does_not_cross_from_one_registration_into_the_next() {
        let mut plan = SlotPlan::new(1_000, registered);
        plan.add(SlotSource::Host(1_900), [3_000].into_iter(), 100).unwrap();
        plan.add(SlotSource::Host(2_000), [3_100].into_iter(), 100).unwrap();
        let uses = plan.into_uses();
        assert_eq!(runs(&uses[0].reads), [(1_900, 0, 100), (2_000, 100, 100)]);
        assert_eq!(runs(&uses[0].writes), [(3_000, 0, 200)]);
        let mut plan = SlotPlan::new(1_000, registered);
        let refused = plan.add(SlotSource::Host(1_950), [3_000].into_iter(), 100).unwrap_err();
        assert_eq!(refused, NotRegistered { address: 1_950, bytes: 100 });
        let refused = plan.add(SlotSource::Value(1), [8_950].into_iter(), 100).unwrap_err();
        assert_eq!(refused, NotRegistered { address: 8_950, bytes: 100 });
    }

    #[test]
    fn ranges_that_follow_each_other_in_memory_and_not_in_the_slot_are_apart() {
        let mut plan = SlotPlan::new(100, registered);
        plan.add(SlotSource::Host(2_000), [5_000].into_iter(), 30).unwrap();
        plan.add(SlotSource::Value(1), [6_000].into_iter(), 10).unwrap();
        plan.add(SlotSource::Host(2_030), [5_030].into_iter(), 30).unwrap();
        let uses = plan.into_uses();
        assert_eq!(runs(&uses[0].reads), [(2_000, 0, 30), (2_030, 40, 30)]);
        assert_eq!(runs(&uses[0].writes), [(5_000, 0, 30), (6_000, 30, 10), (5_030, 40, 30)]);
    }

    #[test]
    fn fills_of_one_value_are_one_fill_and_two_targets_have_one_read() {
        let mut plan = SlotPlan::new(100, registered);
        plan.add(SlotSource::Value(7), [1_000].into_iter(), 30).unwrap();
        plan.add(SlotSource::Value(7), [1_030].into_iter(), 30).unwrap();
        plan.add(SlotSource::Value(8), [1_060].into_iter(), 10).unwrap();
        plan.add(SlotSource::Host(2_000), [4_000, 5_000].into_iter(), 30).unwrap();
        let uses = plan.into_uses();
        assert_eq!(uses.len(), 1);
        let fills: Vec<_> = uses[0].fills.iter().map(|run| (run.offset, run.bytes, run.value)).collect();
        assert_eq!(fills, [(0, 60, 7), (60, 10, 8)]);
        assert_eq!(runs(&uses[0].reads), [(2_000, 70, 30)]);
        assert_eq!(runs(&uses[0].writes), [(1_000, 0, 70), (4_000, 70, 30), (5_000, 70, 30)]);
    }
}
