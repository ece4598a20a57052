//! The corpus of the fuzz target `data_pointer`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/data_pointer.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_pointer_is_as_long_as_its_data_or_refused() {
    replay::replay("data_pointer", body::body);
}
