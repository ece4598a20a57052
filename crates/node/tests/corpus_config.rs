//! The corpus of the fuzz target `config`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/config.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_refusal_names_its_file() {
    replay::replay("config", body::body);
}
