//! Access to the keys of a live or stopped node: RESP client, pipeline, targets.

pub mod pipeline;
pub mod resp_client;
pub mod target;
