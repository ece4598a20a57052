//! A controller that clients share: our own driver over our own controller, and clients whose entries it carries out after
//! they were checked.
#![expect(clippy::unwrap_used, reason = "a broken promise ends the test")]

mod asleep;
mod attached;
mod desk;
mod direct;
mod host;
mod isolation;
mod resets;
