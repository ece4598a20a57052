//! The behaviour of every device, on every I/O path.

use headwater_dma::pool::PoolError;
use headwater_host::width::to_usize;
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_io::{
    Buffer, Command, Device, GetOptions, IoError, IoRequest, PoolSettings, RejectedCommand, StoreCondition,
    SubmitError, ValueCaching, WriteDurability,
};
use headwater_nvme::spec::status::Status;
use std::collections::BTreeSet;

/// Checks keys and values, on an empty key space.
///
/// # Panics
/// The device behaves otherwise.
pub fn keys(device: &mut Device) {
    assert!(device.namespace().is_key_space());
    assert_eq!(device.get(b"k").unwrap(), None);
    assert!(!device.exist(b"k").unwrap());
    for bytes in [0, 1, 100, 4_096, 5_000, 2_000_000] {
        let value = pattern(bytes);
        device.put(b"k", &value).unwrap();
        assert_eq!(device.get(b"k").unwrap().unwrap(), value, "{bytes} bytes");
    }
    let taken = device.put_if(b"k", b"w", StoreCondition::IfAbsent).unwrap_err();
    assert_eq!(taken.status(), Some(Status::KEY_EXISTS));
    let absent = device.put_if(b"l", b"w", StoreCondition::IfExists).unwrap_err();
    assert_eq!(absent.status(), Some(Status::KEY_DOES_NOT_EXIST));
    device.put_if(b"l", b"w", StoreCondition::IfAbsent).unwrap();
    device.put_if(b"l", b"x", StoreCondition::IfExists).unwrap();
    assert_eq!(device.get(b"l").unwrap().unwrap(), b"x");
    device.delete(b"l").unwrap();
    device.delete(b"l").unwrap();
    assert!(!device.exist(b"l").unwrap());
    for key in [&b""[..], &[1; 17]] {
        assert!(matches!(device.put(key, b"v"), Err(IoError::Key { .. })));
    }
    parts(device);
    device.flush().unwrap();
    device.delete(b"k").unwrap();
    listing(device);
    assert!(matches!(device.read(0, &mut [0; 512]), Err(IoError::Namespace { .. })));
}

/// Checks values longer than what one command moves elsewhere, up to the longest, on a device of Headwater with room for 300 MiB.
///
/// # Panics
/// The device behaves otherwise.
pub fn long_values(device: &mut Device) {
    let longest = headwater_io::VALUE_BYTES_MAX;
    for bytes in [(16 << 20) + 1, longest] {
        let value = pattern(bytes);
        device.put(b"long", &value).unwrap();
        assert!(device.get(b"long").unwrap().unwrap() == value, "{bytes} bytes");
    }
    let refused = device.put(b"long", &vec![0; longest + 1]).unwrap_err();
    assert!(matches!(refused, IoError::TransferTooLong { max, .. } if max == longest), "{refused}");
    device.delete(b"long").unwrap();
}

/// Checks reads of parts of a value, if the device has them.
fn parts(device: &mut Device) {
    let from = |offset, caching| GetOptions { offset, caching };
    if !device.namespace().retrieve_options {
        let refused = device.get_part(b"k", from(1, ValueCaching::ByLength), &mut [0; 4]).unwrap_err();
        assert!(matches!(refused, IoError::Unsupported { .. }), "{refused}");
        return;
    }
    assert_eq!(device.get_part(b"none", from(1, ValueCaching::ByLength), &mut [0; 4]).unwrap(), None);
    for value_bytes in [0, 1, 5_000, 100_000, 2_000_003] {
        let value = pattern(value_bytes);
        device.put(b"k", &value).unwrap();
        let offsets = [0, 1, 4_095, 4_096, 99_999, 262_143, 1_000_000, 2_000_002, 2_000_003, u32::MAX];
        for offset in offsets {
            for (bytes, caching) in [
                (0, ValueCaching::ByLength),
                (1, ValueCaching::Keep),
                (5, ValueCaching::ByLength),
                (300_000, ValueCaching::Keep),
            ] {
                let mut into = vec![0xEE; bytes];
                let part = device.get_part(b"k", from(offset, caching), &mut into).unwrap().unwrap();
                let rest = value.get(to_usize(offset.into())..).unwrap_or_default();
                let expected = &rest[..rest.len().min(bytes)];
                assert_eq!((part.bytes, part.value_bytes), (expected.len(), value_bytes));
                assert!(into.starts_with(expected), "{bytes} bytes from {offset} on of {value_bytes}");
                assert!(into[part.bytes..].iter().all(|&byte| byte == 0xEE), "bytes behind the part");
            }
        }
    }
}

fn listing(device: &mut Device) {
    let wanted: BTreeSet<Vec<u8>> = (0..500_u32).map(|key| format!("key-{key}").into_bytes()).collect();
    for key in &wanted {
        device.put(key, b"v").unwrap();
    }
    let mut found: Vec<Vec<u8>> = device.list(None).unwrap();
    loop {
        let last = found.last().unwrap().clone();
        let more = device.list(Some(&last)).unwrap();
        assert_eq!(more.first(), Some(&last), "a list starts with the requested key");
        if more.len() == 1 {
            break;
        }
        found.extend(more.into_iter().skip(1));
    }
    assert_eq!(found.len(), wanted.len(), "no key twice");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted);
    for key in &wanted {
        device.delete(key).unwrap();
    }
}

/// Checks namespaces of blocks, created and deleted.
///
/// # Panics
/// The device behaves otherwise.
pub fn blocks(device: &mut Device) {
    for block_bytes in [512_u32, 4_096] {
        let size = 2_000;
        let text = NamespaceSpec { block_bytes, size, ..NamespaceSpec::keys() };
        let namespace = device.create_namespace(text).unwrap();
        device.select_namespace(namespace).unwrap();
        assert_eq!((device.namespace().block_bytes, device.namespace().size), (block_bytes, size));
        let bytes = block_bytes as usize;
        let mut back = vec![0xFF; 3 * bytes];
        device.read(0, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 0), "blocks that were never written are zeroes");
        block_reads_and_writes(device);
        let written = pattern(bytes);
        match device.change_namespace(namespace, NamespaceRequest::Resize(size * 2)) {
            Ok(()) => {
                assert_eq!(device.namespace().size, size * 2);
                device.write(size * 2 - 1, &written[..bytes], WriteDurability::NamespaceDefault).unwrap();
            }
            // NVMe has no command for it, so a path that carries only NVMe commands refuses.
            Err(IoError::Unsupported { .. }) => assert_eq!(device.namespace().size, size),
            Err(other) => panic!("{other}"),
        }
        device.change_namespace(namespace, NamespaceRequest::Delete).unwrap();
        assert!(device.read(0, &mut back).is_err(), "a deleted namespace is not read");
    }
}

/// Returns the settings of a pool for [`fragmented_pool`].
///
/// # Panics
/// Never: the text is a setting.
#[must_use]
pub fn small_pool() -> PoolSettings {
    let sizes = PoolSettings {
        chunk_bytes: Some(1 << 20),
        cap_bytes: Some(8 << 20),
        static_bytes: Some(0),
        ..PoolSettings::default()
    };
    sizes.with_tiers("0:16777216").unwrap()
}

/// Checks that a handle moves one request in pieces of a pool without a run that is long enough, and that a queue whose
/// limits permit it moves them as one command, as often as its depth. The device has the pool of [`small_pool`] and a namespace
/// of blocks with room for 1 MiB.
///
/// # Panics
/// The device behaves otherwise.
pub fn fragmented_pool(device: &mut Device) {
    const PIECE: usize = 64 << 10;
    let mut handle = device.handle(8).unwrap().build().unwrap();
    let mut held = Vec::new();
    while let Ok(buffer) = device.buffer(PIECE) {
        held.push(buffer);
    }
    held.sort_by_key(Buffer::process_address);
    let held: Vec<Buffer> = held.into_iter().step_by(2).collect();
    let refused = device.buffer(4 * PIECE).unwrap_err();
    assert!(matches!(refused, IoError::Pool(PoolError::WouldBlock { .. })), "{refused}");
    let [from, into] = [(); 2].map(|()| device.buffers(4 * PIECE, 16).unwrap());
    assert_eq!([from.len(), into.len()], [4, 4], "pieces of {PIECE} bytes");
    let expected = pattern(4 * PIECE);
    for (piece, part) in from.iter().zip(expected.chunks(PIECE)) {
        piece.write(0, part).unwrap();
    }
    handle.run(IoRequest::write_gathered(8_192, from, WriteDurability::NamespaceDefault)).unwrap();
    handle.run(IoRequest::read_scattered(8_192, into.clone())).unwrap();
    assert_pieces(&into, &expected);
    assert!(device.pool().statistics().steps.scattered >= 2);
    let (id, block_bytes) = (device.namespace().id, device.namespace().block_bytes);
    let mut queue = device.queue(4).unwrap();
    if queue.limits().segments_max >= into.len() {
        // In another order than that of their addresses.
        let pieces: Vec<Buffer> = into.iter().rev().cloned().collect();
        for token in 0..20 {
            pieces.iter().for_each(|piece| piece.write(0, &vec![0xEE; PIECE]).unwrap());
            let first = 8_192 / u64::from(block_bytes);
            let read = Command::read_scattered(id, first, block_bytes, pieces.clone()).unwrap();
            queue.submit(read, token).unwrap();
            queue.wait(None).unwrap().unwrap().into_result().unwrap();
            assert_pieces(&pieces, &expected);
        }
        for token in 0..4 {
            let read = Command::read_scattered(id, 0, block_bytes, into.clone()).unwrap();
            queue.submit(read, token).unwrap();
        }
        for _ in 0..4 {
            queue.wait(None).unwrap().unwrap().into_result().unwrap();
        }
    }
    drop(held);
}

fn assert_pieces(pieces: &[Buffer], expected: &[u8]) {
    let mut rest = expected;
    for piece in pieces {
        let (part, behind) = rest.split_at(piece.bytes());
        let mut back = vec![0; part.len()];
        piece.read(0, &mut back).unwrap();
        assert!(back == part, "a piece differs from what was written");
        rest = behind;
    }
}

/// Checks reads and writes of a namespace of at least 1,000 blocks, with any contents.
///
/// # Panics
/// The device behaves otherwise.
pub fn block_reads_and_writes(device: &mut Device) {
    let (bytes, size) = (device.namespace().block_bytes as usize, device.namespace().size);
    let written = pattern(5 * bytes);
    device.write(10, &written, WriteDurability::NamespaceDefault).unwrap();
    device.write(size - 1, &written[..bytes], WriteDurability::Immediate).unwrap();
    let mut back = vec![0xFF; 3 * bytes];
    device.read(11, &mut back).unwrap();
    assert_eq!(back, written[bytes..4 * bytes]);
    device.flush().unwrap();
    let long = pattern(600 * bytes);
    device.write(100, &long, WriteDurability::NamespaceDefault).unwrap();
    let mut all = vec![0; long.len()];
    device.read(100, &mut all).unwrap();
    assert_eq!(all, long);
    assert_out_of_range(device.write(size - 1, &written[..2 * bytes], WriteDurability::NamespaceDefault));
    assert_out_of_range(device.read(u64::MAX, &mut back));
    assert!(matches!(device.write(0, &[1], WriteDurability::Immediate), Err(IoError::PartialBlocks { .. })));
    assert!(device.get(b"k").is_err(), "blocks hold no keys");
    every_block_command(device);
}

/// Checks the block commands of a queue beside read and write.
fn every_block_command(device: &mut Device) {
    let (id, block_bytes, size) = {
        let namespace = device.namespace();
        (namespace.id, namespace.block_bytes, namespace.size)
    };
    let bytes = block_bytes as usize;
    let written = pattern(8 * bytes);
    device.write(20, &written, WriteDurability::NamespaceDefault).unwrap();
    let buffer = device.buffer(16 * bytes).unwrap();
    let mut queue = device.queue(4).unwrap();
    let slice = |at: usize, blocks: usize| buffer.slice(at * bytes, blocks * bytes).unwrap();
    let mut run = |command: Command| -> Result<u32, IoError> {
        queue.submit(command, 7)?;
        let completion = queue.wait(None)?.unwrap();
        assert_eq!(completion.token, 7);
        completion.into_result()
    };
    buffer.write(0, &written).unwrap();
    let compare = |lba, from| Command::compare(id, lba, block_bytes, from).unwrap();
    run(compare(20, slice(0, 8))).unwrap();
    assert_eq!(run(compare(21, slice(0, 2))).unwrap_err().status(), Some(Status::COMPARE_FAILURE));
    assert_out_of_range(run(compare(size, slice(0, 1))));
    run(Command::write_zeroes(id, 21, 2, WriteDurability::NamespaceDefault).unwrap()).unwrap();
    run(Command::write_zeroes(id, 23, 1, WriteDurability::Immediate).unwrap()).unwrap();
    assert_out_of_range(run(Command::write_zeroes(id, size - 1, 2, WriteDurability::Immediate).unwrap()));
    let list = device.buffer(4_096).unwrap();
    assert_out_of_range(run(Command::discard(id, &[(26, 1), (size - 1, 2)], &list).unwrap()));
    run(Command::discard(id, &[(24, 1), (900, 0), (25, 1)], &list).unwrap()).unwrap();
    let (first, second) = (slice(8, 3), slice(12, 3));
    if queue.limits().segments_max > 1 {
        let scattered = vec![first.clone(), second.clone()];
        queue.submit(Command::read_scattered(id, 20, block_bytes, scattered).unwrap(), 1).unwrap();
    } else {
        queue.submit(Command::read(id, 20, block_bytes, first.clone()).unwrap(), 1).unwrap();
        queue.submit(Command::read(id, 23, block_bytes, second.clone()).unwrap(), 2).unwrap();
    }
    while let Some(completion) = queue.wait(None).unwrap() {
        completion.into_result().unwrap();
    }
    let mut back = vec![0; 3 * bytes];
    first.read(0, &mut back).unwrap();
    assert_eq!(back[..bytes], written[..bytes]);
    assert!(back[bytes..].iter().all(|&byte| byte == 0), "zeroes were written");
    second.read(0, &mut back).unwrap();
    assert!(back[..bytes].iter().all(|&byte| byte == 0), "zeroes were written, durable");
    device.read(26, &mut back[..2 * bytes]).unwrap();
    assert_eq!(back[..2 * bytes], written[6 * bytes..], "refused and unnamed ranges are unchanged");
}

/// Checks that blocks beyond the end are refused, by the device or before it.
fn assert_out_of_range<T: std::fmt::Debug>(answer: Result<T, IoError>) {
    match answer.unwrap_err() {
        IoError::BlocksOutOfRange { .. } | IoError::Status(Status::LBA_OUT_OF_RANGE) => {}
        other => panic!("{other}"),
    }
}

/// Checks many commands at once: each accepted one is answered once.
///
/// # Panics
/// The device behaves otherwise.
pub fn queues(device: &mut Device) {
    let namespace = device.namespace().id;
    let buffer = device.buffer(64 * 1_024).unwrap();
    let mut queue = device.queue(16).unwrap();
    assert_eq!((queue.depth(), queue.in_flight()), (16, 0));
    assert_eq!(queue.poll().unwrap(), None);
    let total = 2_000_u64;
    let (mut sent, mut answered) = (0, vec![0_u32; usize::try_from(total).unwrap()]);
    while answered.contains(&0) {
        while sent < total {
            let slot = buffer.slice(usize::try_from(sent % 64).unwrap() * 1_024, 1_024).unwrap();
            slot.write(0, &sent.to_le_bytes()).unwrap();
            let key = (sent % 300).to_le_bytes();
            match queue.submit(Command::put(namespace, &key, slot, StoreCondition::Always).unwrap(), sent) {
                Ok(()) => sent += 1,
                Err(RejectedCommand { reason: SubmitError::Full, .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let answer = queue.wait(None).unwrap().unwrap();
        assert_eq!(answer.status, Status::SUCCESS);
        answered[usize::try_from(answer.token).unwrap()] += 1;
    }
    assert!(answered.iter().all(|&times| times == 1));
    assert!(device.queue(0).is_err() && device.queue(1 << 20).is_err());
    // A short buffer receives the start of a value; the result is the whole length.
    let get = Command::get(namespace, &5_u64.to_le_bytes(), buffer.slice(0, 8).unwrap()).unwrap();
    queue.submit(get, 1).unwrap();
    assert_eq!(queue.wait(None).unwrap().unwrap().into_result().unwrap(), 1_024);
    drop(queue);
    for key in 0..300_u64 {
        device.delete(&key.to_le_bytes()).unwrap();
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}
