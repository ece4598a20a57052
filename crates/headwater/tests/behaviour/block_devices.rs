//! Files as block devices: with and without the page cache, by io_uring and by plain system calls.

use headwater::{Command, Device, IoError, Status, WriteDurability};
use headwater_host::clock::Nanos;
use headwater_io::queue::Queue;
use headwater_testkit::device_behaviour;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::Path;

/// Returns a folder on a disk, and one in memory, whose file system may have no direct I/O.
fn folders() -> Vec<tempfile::TempDir> {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let memory = Path::new("/dev/shm").is_dir().then(|| tempfile::tempdir_in("/dev/shm").unwrap());
    [Some(disk), memory].into_iter().flatten().collect()
}

fn url(folder: &tempfile::TempDir, more: &str) -> String {
    format!("io-uring:{}/disk?create=16MiB{more}", folder.path().display())
}

/// Takes every answer and checks that each token of `0..count` occurs once.
fn all_answered(queue: &mut Queue, count: u64) {
    let mut tokens: Vec<u64> = Vec::new();
    while let Some(completion) = queue.wait(None).unwrap() {
        completion.into_result().unwrap();
        tokens.push(completion.token);
    }
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..count));
}

#[test]
fn files_are_block_devices_with_and_without_io_uring() {
    for folder in folders() {
        for plain in ["", "&plain=1"] {
            let mut device = Device::open(&url(&folder, plain)).unwrap();
            assert_eq!(device.namespaces().unwrap().len(), 1);
            let facts = device.namespace().clone();
            assert_eq!(facts.size * u64::from(facts.block_bytes), 16 << 20);
            device_behaviour::block_reads_and_writes(&mut device);
            assert!(device.put(b"k", b"v").is_err(), "no keys");
            assert!(matches!(
                device.change_namespace(1, headwater::NamespaceRequest::Delete),
                Err(IoError::Unsupported { .. })
            ));
        }
    }
}

#[test]
fn commands_of_several_queues_complete_once_and_keep_their_data() {
    for folder in folders() {
        for plain in ["", "&plain=1"] {
            let mut device = Device::open(&url(&folder, plain)).unwrap();
            let block = device.namespace().block_bytes;
            let threads: Vec<_> = (0..3_u8)
                .map(|number| {
                    let mut queue = device.queue(32).unwrap();
                    if number == 0 {
                        queue.set_spin(Nanos::ZERO);
                    }
                    let buffer = device.buffer(64 * block as usize).unwrap();
                    std::thread::spawn(move || {
                        let first = u64::from(number) * 100;
                        let bytes = block as usize;
                        for round in 0..2_u64 {
                            for lba in 0..64_u64 {
                                let at = usize::try_from(lba).unwrap() * bytes;
                                let slice = buffer.slice(at, bytes).unwrap();
                                let command = if round == 0 {
                                    slice.write(0, &vec![number + 1; bytes]).unwrap();
                                    Command::write(
                                        1,
                                        first + lba,
                                        block,
                                        slice,
                                        WriteDurability::NamespaceDefault,
                                    )
                                } else {
                                    slice.write(0, &vec![0xEE; bytes]).unwrap();
                                    Command::read(1, first + lba, block, slice)
                                };
                                queue.submit(command.unwrap(), lba % 32).unwrap();
                                if lba % 32 == 31 {
                                    all_answered(&mut queue, 32);
                                }
                            }
                        }
                        let mut back = vec![0; buffer.bytes()];
                        buffer.read(0, &mut back).unwrap();
                        assert!(back.iter().all(|&byte| byte == number + 1));
                    })
                })
                .collect();
            drop(device);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}

/// Returns true if an answer arrives without another call on the queue.
fn answer_comes(queue: &Queue) -> bool {
    let descriptor = queue.descriptor().unwrap();
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

#[test]
fn wait_without_sleep_still_starts_submitted_commands() {
    for folder in folders() {
        for plain in ["", "&plain=1"] {
            let mut device = Device::open(&url(&folder, plain)).unwrap();
            let block = device.namespace().block_bytes;
            let mut queue = device.queue(4).unwrap();
            queue.set_spin(Nanos::ZERO);
            let mut submit = |queue: &mut Queue, token| {
                let buffer = device.buffer(block as usize).unwrap();
                queue.submit(Command::read(1, token, block, buffer).unwrap(), token).unwrap();
            };
            // A wait with a timeout of zero.
            submit(&mut queue, 0);
            let mut first = queue.wait(Some(Nanos::ZERO)).unwrap();
            if first.is_none() {
                assert!(answer_comes(&queue));
                first = queue.poll().unwrap();
            }
            assert_eq!(first.unwrap().token, 0);
            // A wait that finds the answer of an earlier command.
            submit(&mut queue, 1);
            queue.ring().unwrap();
            assert!(answer_comes(&queue));
            submit(&mut queue, 2);
            assert_eq!(queue.wait(None).unwrap().unwrap().token, 1);
            assert!(answer_comes(&queue));
            assert_eq!(queue.wait(None).unwrap().unwrap().token, 2);
            assert_eq!(queue.wait(None).unwrap(), None);
        }
    }
}

#[test]
fn bytes_after_the_last_whole_block_are_never_changed() {
    for folder in folders() {
        let path = folder.path().join("odd");
        let tail = 300;
        std::fs::write(&path, vec![0xAB; (1 << 20) + tail]).unwrap();
        let mut device = Device::open(&format!("io-uring:{}", path.display())).unwrap();
        let facts = device.namespace().clone();
        let bytes = facts.block_bytes as usize;
        assert_eq!(facts.size, (1 << 20) / u64::from(facts.block_bytes));
        let beyond = device.write(facts.size, &vec![1; bytes], WriteDurability::Immediate).unwrap_err();
        let IoError::BlocksOutOfRange { first, blocks, size } = beyond else { panic!("{beyond}") };
        assert_eq!((first, blocks, size), (facts.size, 1, facts.size));
        let list = device.buffer(4_096).unwrap();
        let mut queue = device.queue(2).unwrap();
        let discard = Command::discard(1, &[(0, 1), (u64::MAX, 2), (facts.size, 1)], &list).unwrap();
        assert!(queue.submit(discard, 1).is_err());
        let zeroes = Command::write_zeroes(1, facts.size - 1, 2, WriteDurability::NamespaceDefault).unwrap();
        assert!(queue.submit(zeroes, 1).is_err());
        drop((queue, device));
        let after = std::fs::read(&path).unwrap();
        assert!(after.len() == (1 << 20) + tail && after.iter().all(|&byte| byte == 0xAB));
    }
}

#[test]
fn a_discarded_range_of_a_file_is_a_hole() {
    use std::os::unix::fs::MetadataExt as _;
    for folder in folders() {
        let mut device = Device::open(&url(&folder, "")).unwrap();
        let (block, size) = (device.namespace().block_bytes, device.namespace().size);
        let written = vec![7; 1 << 20];
        for at in 0..16 {
            device
                .write(at * (1 << 20) / u64::from(block), &written, WriteDurability::NamespaceDefault)
                .unwrap();
        }
        let blocks_of = || std::fs::metadata(folder.path().join("disk")).unwrap().blocks();
        assert!(blocks_of() >= 16 << 11);
        let list = device.buffer(4_096).unwrap();
        let mut queue = device.queue(1).unwrap();
        let half = u32::try_from(size / 2).unwrap();
        queue.submit(Command::discard(1, &[(0, half)], &list).unwrap(), 1).unwrap();
        queue.wait(None).unwrap().unwrap().into_result().unwrap();
        assert!(blocks_of() < 10 << 11, "half of its space is free again");
    }
}

#[test]
fn invalid_commands_complete_with_their_status() {
    let folder = &folders()[0];
    let mut device = Device::open(&url(folder, "")).unwrap();
    let buffer = device.buffer(4_096).unwrap();
    let mut queue = device.queue(1).unwrap();
    let mut status = |command: Command| {
        queue.submit(command, 1).unwrap();
        queue.wait(None).unwrap().unwrap().status
    };
    assert_eq!(status(Command::flush(2)), Status::INVALID_NAMESPACE);
    let mut short = Command::read(1, 0, 4_096, buffer).unwrap();
    short.entry.cdw12.set(1_000);
    assert_eq!(status(short), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(status(Command::exist(1, b"k").unwrap()), Status::INVALID_OPCODE);
    assert!(queue.cancel(1).is_err(), "nothing is in flight");
    assert!(device.queue(0).is_err() && device.queue(1 << 20).is_err());
}

#[test]
fn unusable_files_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().display().to_string();
    std::fs::write(folder.path().join("small"), [0; 100]).unwrap();
    for (url, wanted) in [
        (format!("io-uring:{name}/missing"), "create="),
        (format!("io-uring:{name}"), "directory"),
        (format!("io-uring:{name}/no/such?create=1MiB"), "No such file"),
        (format!("io-uring:{name}/huge?create=99999999T"), "names no device"),
        (format!("io-uring:{name}/large?create=999T"), "free"),
        (format!("io-uring:{name}/small"), "100 bytes"),
        ("io-uring:/dev/null".to_owned(), "character device"),
        (format!("io-uring:{name}/new?create=1MiB&ns=2"), "namespace 2"),
    ] {
        let error = Device::open(&url).unwrap_err().to_string();
        assert!(error.contains(wanted), "{url}: {error}");
    }
    assert!(!folder.path().join("large").exists(), "no partial file is left");
}

#[test]
fn polling_is_refused_with_the_reason_if_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    match Device::open(&url(&folder, "&poll=1")) {
        Err(error) => assert!(error.to_string().contains("polled"), "{error}"),
        // The disk of this machine has poll queues.
        Ok(mut device) => device_behaviour::block_reads_and_writes(&mut device),
    }
}

#[test]
fn read_only_file_is_a_read_only_device() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = &folders()[0];
    let path = folder.path().join("kept");
    std::fs::write(&path, [3; 64 << 10]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let own = format!("io-uring:{}", path.display());
    // Root writes despite the file mode, but not to the kernel's own files.
    let root = std::fs::OpenOptions::new().write(true).open(&path).is_ok();
    let url = if root { "io-uring:/sys/kernel/btf/vmlinux".to_owned() } else { own };
    let mut device = match Device::open(&url) {
        Err(error) if root => return assert!(error.to_string().contains("no such file"), "{error}"),
        opened => opened.unwrap(),
    };
    assert!(!device.namespace().writable);
    let block = vec![9; device.namespace().block_bytes as usize];
    let mut back = vec![0; block.len()];
    device.read(0, &mut back).unwrap();
    let refused = device.write(0, &block, WriteDurability::Immediate).unwrap_err();
    assert_eq!(refused.status(), Some(Status::READ_ONLY));
}
