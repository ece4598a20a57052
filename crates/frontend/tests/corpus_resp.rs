//! The corpus of the fuzz target `resp`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/resp.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn no_cut_changes_what_a_client_said() {
    replay::replay("resp", body::body);
}
