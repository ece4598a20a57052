//! One behaviour, whichever way leads to the device. The attach way runs it in the node's tests, the network's in its own.
#![expect(clippy::unwrap_used, reason = "a broken promise ends the test")]

mod block_devices;
mod suite;

use headwater::{Device, Durable, NamespaceText, NamespaceWish};

#[test]
fn keys_in_memory() {
    suite::keys(&mut Device::open("mem:64MiB").unwrap());
}

#[test]
fn blocks_in_memory() {
    suite::blocks(&mut Device::open("mem:128MiB").unwrap());
}

#[test]
fn a_namespace_is_resized_where_it_is() {
    let mut device = Device::open("mem:128MiB").unwrap();
    let text = NamespaceText { block_bytes: 512, size: 100, ..NamespaceText::keys() };
    let namespace = device.create_namespace(text).unwrap();
    device.choose(namespace).unwrap();
    device.change_namespace(namespace, NamespaceWish::Resize(200)).unwrap();
    assert_eq!(device.namespace().size, 200);
    device.write(199, &[1; 512], Durable::AsPromised).unwrap();
}

#[test]
fn queues_in_memory() {
    suite::queues(&mut Device::open("mem:64MiB").unwrap());
}

#[test]
fn a_directory_behaves_the_same_and_keeps_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}?capacity=128MiB", folder.path().display());
    let mut device = Device::open(&url).unwrap();
    suite::keys(&mut device);
    suite::queues(&mut device);
    suite::blocks(&mut device);
    device.choose(1).unwrap();
    device.put(b"kept", b"over the end of its process").unwrap();
    let busy = Device::open(&url).unwrap_err().to_string();
    assert!(busy.contains("in use"), "{busy}");
    drop(device);
    let mut again = Device::open(&url).unwrap();
    assert_eq!(again.get(b"kept").unwrap().unwrap(), b"over the end of its process");
}

#[test]
fn a_queue_outlives_the_device_it_came_from() {
    let mut device = Device::open("mem:64MiB").unwrap();
    device.put(b"k", b"v").unwrap();
    let buffer = device.buffer(16).unwrap();
    let mut queue = device.queue(1).unwrap();
    drop(device);
    let thread = std::thread::spawn(move || {
        queue.submit(headwater::Command::get(1, b"k", buffer).unwrap(), 1).unwrap();
        queue.wait(None).unwrap().unwrap().ok().unwrap()
    });
    assert_eq!(thread.join().unwrap(), 1);
}

#[test]
fn what_cannot_be_opened_says_why() {
    for url in
        ["attach:/nowhere/at.all", "nvme-tcp://127.0.0.1:1/nqn.x", "mem:1KiB", "ftp:x", "mem:64MiB?ns=17"]
    {
        let error = Device::open(url).unwrap_err().to_string();
        assert!(!error.is_empty(), "{url}");
    }
}
