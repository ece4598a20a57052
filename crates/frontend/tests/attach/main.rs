//! Tests of the attach front end, with correct and with malicious clients.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]
#![expect(clippy::print_stderr, reason = "a test that cannot run says why")]

mod behaviour;
mod crowds;
mod host;
mod hostile;
mod life;
mod policy;
mod restart;
mod unsealed;
