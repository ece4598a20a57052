//! The counters of a front end, as the node publishes them.
//!
//! Input: events of connections and commands. Output: one [`FrontEndCounters`] for all front ends of a node.

use serde::Serialize;
use std::collections::BTreeMap;

/// The outcome of a command, as counted in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusClass {
    /// The command succeeded.
    Ok,
    /// The command was executed and failed: wrong type, failed condition, full device, damaged data.
    Failed,
    /// The command was refused before execution: unknown, wrong arity, not authenticated.
    Rejected,
}

impl StatusClass {
    /// Returns the value of the metric's label.
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
pub struct RequestTrace {
    /// The command's name.
    pub command: &'static str,
    /// The stages in order, each with its nanoseconds.
    pub stages: Vec<TraceStage>,
    /// Nanoseconds of all stages together.
    pub total_ns: u64,
}

/// One stage of a [`RequestTrace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceStage {
    /// The stage's name.
    pub stage: &'static str,
    /// Nanoseconds spent in the stage.
    pub ns: u64,
}

/// The counters of all front ends of a node.
#[derive(Clone, Debug, Default)]
pub struct FrontEndCounters {
    /// Clients connected now.
    pub connections: u64,
    /// Clients connected since the start.
    pub connections_total: u64,
    /// Clients refused because of the connection limit.
    pub connections_refused: u64,
    /// Pauses of a listener because no descriptor was left for a new client.
    pub accept_pauses: u64,
    /// Commands by name and outcome.
    pub commands: BTreeMap<(&'static str, StatusClass), u64>,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Commands in flight in the device, by front end.
    pub in_flight: BTreeMap<&'static str, u64>,
    /// The last sampled request.
    pub trace: Option<RequestTrace>,
}
