//! Replays the fuzz corpus of the driver against a hostile controller.
#![cfg(not(loom))]

#[path = "../../../fuzz/bodies/nvme_driver.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_of_nvme_driver_stays_clean() {
    replay::replay("nvme_driver", body::body);
}
