//! The counters of a front end, as the node publishes them.
//!
//! Input: events of connections and commands. Output: one [`FaceNumbers`] for all front ends of a node.

use serde::Serialize;
use std::collections::BTreeMap;

/// What became of a command, as far as counting goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusClass {
    /// Done.
    Ok,
    /// Tried, and failed: a wrong type, a condition, no room, damage.
    Failed,
    /// Refused before it was tried: unknown, wrong arity, not authenticated.
    Rejected,
}

impl StatusClass {
    /// Its label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }
}

/// The last sampled request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// Its command.
    pub command: &'static str,
    /// Each stage it went through, in order, with its nanoseconds.
    pub stages: Vec<TraceStage>,
    /// From the first byte to the answer.
    pub total_ns: u64,
}

/// One stage of a [`Trace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceStage {
    /// The stage.
    pub stage: &'static str,
    /// Nanoseconds in it.
    pub ns: u64,
}

/// What the faces of a node count.
#[derive(Clone, Debug, Default)]
pub struct FaceNumbers {
    /// Clients connected now.
    pub connections: u64,
    /// Clients that ever connected.
    pub connections_total: u64,
    /// Clients refused because of the limit.
    pub connections_refused: u64,
    /// Commands by name and what became of them.
    pub commands: BTreeMap<(&'static str, StatusClass), u64>,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Commands in the device now, by face.
    pub in_flight: BTreeMap<&'static str, u64>,
    /// The last sampled request.
    pub trace: Option<Trace>,
}
