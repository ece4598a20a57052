//! The progress of the last sanitize operation that a restart needs.
//!
//! Input: the start and the end of sanitize operations. Output: the state that hosts read. `ftl/sanitize_mark.rs` keeps
//! it in a record.

use headwater_nvme::controller::admin::SanitizeState;

/// The progress of a sanitize operation that a restart needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizePhase {
    /// No operation ran, or its failure was cleared.
    Never,
    /// It began and must continue.
    Running,
    /// It erased all old data.
    Completed,
    /// It failed.
    Failed,
}

impl SanitizePhase {
    /// Returns the state that hosts read.
    pub(crate) const fn sanitize_state(self) -> SanitizeState {
        match self {
            Self::Never => SanitizeState::Never,
            Self::Running => SanitizeState::Running(0),
            Self::Completed => SanitizeState::Completed,
            Self::Failed => SanitizeState::Failed,
        }
    }
}

/// The last sanitize operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SanitizeMark {
    /// Its progress.
    pub phase: SanitizePhase,
    /// Dword 10 of the command that began it.
    pub command: u32,
}
