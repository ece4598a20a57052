//! Replays the corpus of the fuzz target `backup_message`; needs no nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::backup_message as body;

#[test]
fn both_ends_of_the_backup_socket_bear_any_bytes() {
    replay::replay("backup_message", body::body);
}
