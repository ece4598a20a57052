//! The corpus of the fuzz target `media_recovery`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/media_recovery.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn whatever_lies_on_a_medium_the_device_opens_or_says_why_not() {
    replay::replay("media_recovery", body::body);
}
