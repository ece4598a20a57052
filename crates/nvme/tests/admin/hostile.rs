//! Hosts that follow no rule: random register accesses and admin commands in random states.

#[path = "../../../../fuzz/bodies/admin_command.rs"]
mod body;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_host_makes_the_controller_panic_or_answer_an_admin_command_twice(acts in vec(any::<u8>(), 0..600)) {
        body::body(&acts);
    }
}

#[test]
fn what_was_found_stays_found() {
    replay::replay("admin_command", body::body);
}
