//! Tests of the attach front end, with correct and with malicious clients.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod behaviour;
mod host;
mod hostile;
mod life;
mod policy;
mod restart;
mod unsealed;
