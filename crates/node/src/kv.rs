//! The tools that read and write keys of a node, live or stopped: RESP client, pipeline, target.

pub mod pipeline;
pub mod resp_client;
pub mod target;
