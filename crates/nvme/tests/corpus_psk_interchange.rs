//! Replays the fuzz corpus of PSKs in interchange format.

#[path = "../../../fuzz/bodies/psk_interchange.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_of_psk_interchange_stays_clean() {
    replay::replay("psk_interchange", body::body);
}
