//! Tests of the ring front end with well-behaved and hostile clients.

mod blocks;
mod commands;
mod guest;
mod harness;
mod hostile;
mod lifecycle;
mod raw_host;
