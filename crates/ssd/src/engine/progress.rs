//! The progress of opening, inspecting or upgrading a device, as a caller can show it.
//!
//! Input: a stage and its steps. Output: the same, for the caller's report. Invariant: none.

/// The progress of opening, inspecting or upgrading a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenProgress {
    /// The stage: `survey`, `checkpoint`, `scan`, `replay`, `clean up`, `verify`, `compare`, `write` or `move`.
    pub stage: &'static str,
    /// Steps done in this stage.
    pub done: u64,
    /// Steps of this stage in total.
    pub total: u64,
}
