//! What the attach face promises to clients in other processes, and to everybody else when one of them is bad.
#![expect(clippy::unwrap_used, reason = "a broken promise ends the test")]

mod behaviour;
mod host;
mod hostile;
mod life;
mod policy;
mod restart;
