//! The behaviour suite of all devices, over attach.

#[path = "../../../headwater/tests/behaviour/suite.rs"]
mod suite;

use crate::host::{AttachHost, media};
use headwater_frontend::attach::policy::GrantPolicy;

#[test]
fn keys_queues_and_blocks_pass_the_behaviour_suite() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    suite::keys(&mut client);
    suite::queues(&mut client);
    suite::blocks(&mut client);
    drop(host.end());
}
