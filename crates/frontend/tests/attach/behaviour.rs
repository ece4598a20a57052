//! The behaviour suite of all devices, over attach.

use crate::host::{AttachHost, media};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_io::namespace_request::NamespaceSpec;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_testkit::device_behaviour;

#[test]
fn keys_queues_and_blocks_pass_the_behaviour_suite() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client();
    assert!(client.namespace().retrieve_options);
    device_behaviour::keys(&mut client);
    device_behaviour::queues(&mut client);
    device_behaviour::blocks(&mut client);
    drop(host.end());
}

#[test]
fn fragmented_pool_of_a_client_serves_requests() {
    let folder = tempfile::tempdir().unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
    let mut client = host.client_with(&device_behaviour::small_pool());
    let text = NamespaceSpec { block_bytes: 4_096, size: 1_000, ..NamespaceSpec::keys() };
    let namespace = client.create_namespace(text).unwrap();
    client.select_namespace(namespace).unwrap();
    assert_eq!(client.queue(4).unwrap().limits().segments_max, 64, "a command names many buffers");
    device_behaviour::fragmented_pool(&mut client);
    drop((client, host.end()));
}

#[test]
fn values_longer_than_a_transfer_of_nvme_pass_in_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(1_600)).unwrap();
    let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media);
    device_behaviour::long_values(&mut host.client());
}
