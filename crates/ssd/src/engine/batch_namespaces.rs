//! The namespaces of the writes of a batch, and those that it clears.
//!
//! Input: the command. Output: the namespace of each write, those of the whole batch, and those that it clears. Invariant: a
//! batch of one namespace costs no search.

use crate::command::{BatchClear, NamespaceId, NamespaceRun, SsdCommand};
use crate::limits::{BATCH_RUNS_MAX, NAMESPACES, SPACES};
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;

/// The namespaces of the writes of a batch, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchNamespaces<'a> {
    /// All writes have this one.
    One(NamespaceId),
    /// The runs of a batch over several; there is at least one.
    Runs(&'a [NamespaceRun]),
}

impl BatchNamespaces<'_> {
    /// Returns the namespace of a write.
    #[inline]
    pub(crate) fn of(self, write: usize) -> NamespaceId {
        match self {
            Self::One(namespace) => namespace,
            Self::Runs(runs) => runs[runs.partition_point(|run| run.end <= write)].namespace,
        }
    }

    /// Returns all of them, perhaps some more than once.
    #[inline]
    pub(crate) fn each(self) -> impl Iterator<Item = NamespaceId> {
        let (one, runs) = match self {
            Self::One(namespace) => (Some(namespace), &[][..]),
            Self::Runs(runs) => (None, runs),
        };
        one.into_iter().chain(runs.iter().map(|run| run.namespace))
    }

    /// Returns those that the batch clears.
    #[inline]
    pub(crate) fn cleared(self) -> NamespaceSet {
        match self {
            Self::One(_) => NamespaceSet::default(),
            Self::Runs(runs) => {
                let cleared = runs.iter().filter(|run| run.clear == BatchClear::BeforeWrites);
                cleared.map(|run| run.namespace).collect()
            }
        }
    }
}

/// A set of namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceSet(u32);

const _: () = assert!(SPACES <= u32::BITS as usize);

impl NamespaceSet {
    /// Returns true if there is no member.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Removes the first member.
    #[inline]
    pub(crate) fn take_first(&mut self) -> Option<NamespaceId> {
        if self.is_empty() {
            return None;
        }
        let first = self.iter().next()?;
        self.0 &= !(1 << first.index());
        Some(first)
    }

    /// Returns the number of members.
    pub(crate) fn len(self) -> usize {
        to_usize(self.0.count_ones().into())
    }

    /// Returns true if the namespace is a member.
    #[inline]
    pub(crate) fn contains(self, namespace: NamespaceId) -> bool {
        self.0 >> namespace.index() & 1 == 1
    }

    /// Returns the members in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = NamespaceId> {
        (1..).take(NAMESPACES).map(NamespaceId).filter(move |member| self.contains(*member))
    }
}

impl FromIterator<NamespaceId> for NamespaceSet {
    fn from_iter<I: IntoIterator<Item = NamespaceId>>(members: I) -> Self {
        Self(members.into_iter().fold(0, |set, member| set | 1 << member.index()))
    }
}

impl SsdCommand {
    /// Returns the runs of a batch over several namespaces; none of any other command.
    #[inline]
    pub(crate) fn namespace_runs(&self) -> &[NamespaceRun] {
        if let Self::BatchAcross { runs, .. } = self { runs } else { &[] }
    }
}

/// Checks the runs of a batch of this many writes that is submitted with this namespace.
pub(super) fn check_runs(runs: &[NamespaceRun], writes: usize, namespace: NamespaceId) -> Result<(), Status> {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Err(Status::INVALID_FIELD) };
    if runs.iter().any(|run| run.namespace.index() >= NAMESPACES) {
        return Err(Status::INVALID_NAMESPACE);
    }
    let firsts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
    // A run without writes is there for its clear.
    let is_sound = |(run, first): (&NamespaceRun, usize)| {
        run.end > first || run.end == first && run.clear == BatchClear::BeforeWrites
    };
    let fits = runs.len() <= BATCH_RUNS_MAX && last.end == writes && runs.iter().zip(firsts).all(is_sound);
    if fits && first.namespace == namespace { Ok(()) } else { Err(Status::INVALID_FIELD) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u8, end: usize) -> NamespaceRun {
        NamespaceRun { namespace: NamespaceId(number), end, clear: BatchClear::No }
    }

    fn clearing(number: u8, end: usize) -> NamespaceRun {
        NamespaceRun { clear: BatchClear::BeforeWrites, ..run(number, end) }
    }

    #[test]
    fn each_write_has_the_namespace_of_its_run() {
        let runs = [run(3, 2), run(1, 3), run(3, 7)];
        let namespaces = BatchNamespaces::Runs(&runs);
        let numbers: Vec<u8> = (0..7).map(|write| namespaces.of(write).0).collect();
        assert_eq!(numbers, [3, 3, 1, 3, 3, 3, 3]);
        let set: NamespaceSet = namespaces.each().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [NamespaceId(1), NamespaceId(3)]);
        let one = BatchNamespaces::One(NamespaceId(5));
        assert_eq!((one.of(0), one.of(70_000)), (NamespaceId(5), NamespaceId(5)));
        assert_eq!(one.each().collect::<Vec<_>>(), [NamespaceId(5)]);
    }

    #[test]
    fn runs_that_clear_may_have_no_writes() {
        let runs = [clearing(4, 0), run(3, 2), clearing(1, 2), clearing(2, 3)];
        let namespaces = BatchNamespaces::Runs(&runs);
        assert_eq!((0..3).map(|write| namespaces.of(write).0).collect::<Vec<_>>(), [3, 3, 2]);
        let cleared = namespaces.cleared();
        assert_eq!(cleared.iter().map(|namespace| namespace.0).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(cleared.contains(NamespaceId(4)) && !cleared.contains(NamespaceId(3)) && cleared.len() == 3);
        assert!(BatchNamespaces::One(NamespaceId(1)).cleared().is_empty());
        assert_eq!(check_runs(&runs, 3, NamespaceId(4)), Ok(()));
        assert_eq!(check_runs(&[clearing(4, 0)], 0, NamespaceId(4)), Ok(()));
        assert_eq!(check_runs(&[run(4, 0)], 0, NamespaceId(4)), Err(Status::INVALID_FIELD));
        let falling = [clearing(4, 2), clearing(1, 1)];
        assert_eq!(check_runs(&falling, 1, NamespaceId(4)), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn runs_that_do_not_cover_the_writes_are_refused() {
        let (first, invalid) = (NamespaceId(2), Err(Status::INVALID_FIELD));
        assert_eq!(check_runs(&[run(2, 1), run(16, 4)], 4, first), Ok(()));
        for runs in [
            &[][..],
            &[run(2, 0), run(1, 4)],
            &[run(2, 2), run(1, 2), run(3, 4)],
            &[run(2, 3), run(1, 2)],
            &[run(2, 1), run(1, 3)],
            &[run(2, 1), run(1, 5)],
            &[run(1, 1), run(2, 4)],
        ] {
            assert_eq!(check_runs(runs, 4, first), invalid, "{runs:?}");
        }
        let many: Vec<NamespaceRun> = (1..=BATCH_RUNS_MAX + 1).map(|end| run(2, end)).collect();
        assert_eq!(check_runs(&many, BATCH_RUNS_MAX + 1, first), invalid);
        for number in [0, 17, 255] {
            let runs = [run(2, 1), run(number, 4)];
            assert_eq!(check_runs(&runs, 4, first), Err(Status::INVALID_NAMESPACE));
        }
    }
}
