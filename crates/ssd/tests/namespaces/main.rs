//! Namespaces as every face meets them: the table, what it survives, blocks, quotas and limits.

#![expect(clippy::unwrap_used, reason = "a test stops where its setting fails")]

mod abort;
mod blocks;
mod host;
mod limits;
mod model;
mod table;
