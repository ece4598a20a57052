//! The doubt on a medium: lost pages of the log, and the namespaces whose keys are answered with errors for them.
//!
//! Input: a recovered translation layer, and the runs of pages that it lost. Output: a finding for each. Invariant: a
//! namespace is named here exactly if a serving device answers some of its keys with an error because of lost pages.

use crate::command::NamespaceId;
use crate::config::LossDigest;
use crate::engine::recovery::LostPages;
use crate::ftl::Ftl;
use crate::ftl::namespace_table::NamespaceDefinition;
use crate::limits::{NAMESPACES, SPACES};
use crate::media::Media;

/// A run of pages of the log that were durable and are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRun {
    /// Number of the first page in the log.
    pub first_tick: u64,
    /// Number of pages.
    pub pages: u64,
    /// The highest sequence of a record that they could hold.
    pub sequence_max: u64,
    /// The namespaces of which they could hold records; the last number is the table of namespaces itself.
    pub namespaces: Vec<u8>,
}

/// A namespace of which records may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubtfulNamespace {
    /// Its number; the last one is the table of namespaces itself.
    pub namespace: u8,
    /// Records below this sequence may be superseded by a lost one. A key without a record is answered with an error
    /// unless it was removed after the loss.
    pub below: u64,
}

impl LostRun {
    pub(crate) fn of(lost: &LostPages) -> Self {
        let namespaces = spaces().filter(|number| lost.namespaces & 1 << number.0 != 0);
        Self {
            first_tick: lost.first.0,
            pages: lost.pages(),
            sequence_max: lost.below.0,
            namespaces: namespaces.map(|number| number.0).collect(),
        }
    }
}

fn spaces() -> impl Iterator<Item = NamespaceId> {
    (1..).map(NamespaceId).take(SPACES)
}

/// Returns the namespaces in doubt, and the digest by which an operator ends all doubt.
pub(crate) fn doubtful<M: Media>(ftl: &Ftl<M>) -> (Vec<DoubtfulNamespace>, Option<LossDigest>) {
    let below = spaces().zip(ftl.doubts().below()).filter(|(_, below)| below.0 > 0);
    let namespaces: Vec<_> =
        below.map(|(number, below)| DoubtfulNamespace { namespace: number.0, below: below.0 }).collect();
    let digest = (!namespaces.is_empty()).then(|| ftl.doubts().digest());
    (namespaces, digest)
}

/// Returns the namespaces whose settings are lost: every command of theirs is answered with an error.
pub(super) fn unusable<M: Media>(ftl: &Ftl<M>) -> Vec<u8> {
    let numbers = (1..).map(NamespaceId).take(NAMESPACES);
    let is_damaged =
        |number: &NamespaceId| *ftl.namespace_table().definition(*number) == NamespaceDefinition::Damaged;
    numbers.filter(is_damaged).map(|number| number.0).collect()
}
