//! The corpus of the fuzz target `command_decode`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/command_decode.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_entry_is_possible_or_refused_for_good() {
    replay::replay("command_decode", body::body);
}
