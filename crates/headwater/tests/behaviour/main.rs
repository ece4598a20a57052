//! One behaviour on every I/O path. The tests of the attach and NVMe/TCP front ends run the same suite.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod block_devices;

use headwater::{Device, NamespaceRequest, NamespaceSpec, WriteDurability};
use headwater_testkit::device_behaviour;

#[test]
fn keys_in_memory() {
    let mut device = Device::open("mem:64MiB").unwrap();
    assert!(device.namespace().retrieve_options);
    device_behaviour::keys(&mut device);
}

#[test]
fn long_values_in_memory() {
    device_behaviour::long_values(&mut Device::open("mem:400MiB").unwrap());
}

#[test]
fn blocks_in_memory() {
    device_behaviour::blocks(&mut Device::open("mem:128MiB").unwrap());
}

#[test]
fn fragmented_pool_serves_requests_in_memory() {
    let mut device = Device::open_with("mem:64MiB", &device_behaviour::small_pool()).unwrap();
    let text = NamespaceSpec { block_bytes: 4_096, size: 1_000, ..NamespaceSpec::keys() };
    let namespace = device.create_namespace(text).unwrap();
    device.select_namespace(namespace).unwrap();
    device_behaviour::fragmented_pool(&mut device);
}

#[test]
fn fragmented_pool_serves_requests_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("io-uring:{}?create=4MiB", folder.path().join("disk").display());
    device_behaviour::fragmented_pool(&mut Device::open_with(&url, &device_behaviour::small_pool()).unwrap());
}

#[test]
fn namespace_is_resized_in_place() {
    let mut device = Device::open("mem:128MiB").unwrap();
    let text = NamespaceSpec { block_bytes: 512, size: 100, ..NamespaceSpec::keys() };
    let namespace = device.create_namespace(text).unwrap();
    device.select_namespace(namespace).unwrap();
    device.change_namespace(namespace, NamespaceRequest::Resize(200)).unwrap();
    assert_eq!(device.namespace().size, 200);
    device.write(199, &[1; 512], WriteDurability::NamespaceDefault).unwrap();
}

#[test]
fn queues_in_memory() {
    device_behaviour::queues(&mut Device::open("mem:64MiB").unwrap());
}

#[test]
fn directory_behaves_the_same_and_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}?capacity=128MiB", folder.path().display());
    let mut device = Device::open(&url).unwrap();
    device_behaviour::keys(&mut device);
    device_behaviour::queues(&mut device);
    device_behaviour::blocks(&mut device);
    device.select_namespace(1).unwrap();
    device.put(b"kept", b"over the end of its process").unwrap();
    let busy = Device::open(&url).unwrap_err().to_string();
    assert!(busy.contains("in use"), "{busy}");
    drop(device);
    let mut again = Device::open(&url).unwrap();
    assert_eq!(again.get(b"kept").unwrap().unwrap(), b"over the end of its process");
}

#[test]
fn queue_outlives_its_device() {
    let mut device = Device::open("mem:64MiB").unwrap();
    device.put(b"k", b"v").unwrap();
    let buffer = device.buffer(16).unwrap();
    let mut queue = device.queue(1).unwrap();
    drop(device);
    let thread = std::thread::spawn(move || {
        queue.submit(headwater::Command::get(1, b"k", buffer).unwrap(), 1).unwrap();
        queue.wait(None).unwrap().unwrap().into_result().unwrap()
    });
    assert_eq!(thread.join().unwrap(), 1);
}

#[test]
fn failed_open_has_a_message() {
    for url in
        ["attach:/nowhere/at.all", "nvme-tcp://127.0.0.1:1/nqn.x", "mem:1KiB", "ftp:x", "mem:64MiB?ns=17"]
    {
        let error = Device::open(url).unwrap_err().to_string();
        assert!(!error.is_empty(), "{url}");
    }
}
