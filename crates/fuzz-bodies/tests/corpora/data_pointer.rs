//! Replays the corpus of the fuzz target `data_pointer`, without a nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::data_pointer as body;

#[test]
fn every_data_pointer_has_the_length_of_its_data_or_is_refused() {
    replay::replay("data_pointer", body::body);
}
