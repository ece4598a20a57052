//! The folders of a DSA device, as the idxd driver shows them.
//!
//! Input: a root and the name of a queue. Output: one enabled user queue below it. Invariant: the file of the queue does not exist, so that no process
//! opens it.

use std::path::{Path, PathBuf};

/// Makes the folders of a device with one shared queue of this name below a root, and returns that of the queue.
///
/// # Panics
/// The root cannot be written.
pub fn make_work_queue(root: &Path, name: &str) -> PathBuf {
    let device = root.join("sys/bus/dsa/devices/dsa0");
    let queue = device.join(name);
    std::fs::create_dir_all(&queue).unwrap();
    std::fs::write(device.join("op_cap"), "0x1003f03ff 0x0 0x0 0x0").unwrap();
    for (name, text) in [
        ("state", "enabled"),
        ("type", "user"),
        ("mode", "shared"),
        ("size", "16"),
        ("max_transfer_size", "2097152"),
        ("max_batch_size", "32"),
    ] {
        std::fs::write(queue.join(name), text).unwrap();
    }
    queue
}
