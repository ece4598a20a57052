//! Tests of namespaces over the device: the table and its durability, blocks, quotas and limits.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

mod abort;
mod across;
mod across_clears;
mod across_limits;
mod across_model;
mod blocks;
mod changing_memory;
mod host;
mod limits;
mod long_writes;
mod lost_memory;
mod model;
mod parts;
mod table;
