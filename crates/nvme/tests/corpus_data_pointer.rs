//! Replays the corpus of the fuzz target `data_pointer`, without a nightly toolchain.

#[path = "../../../fuzz/bodies/data_pointer.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_data_pointer_has_the_length_of_its_data_or_is_refused() {
    replay::replay("data_pointer", body::body);
}
