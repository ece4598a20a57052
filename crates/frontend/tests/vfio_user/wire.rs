//! An independent encoder of vfio-user messages: a bug in the server's encoding must not hide itself.

/// Builds a message from its command, its flags and the part after the header.
pub(crate) fn message(command: u16, flags: u32, rest: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + rest.len()).unwrap();
    let head =
        [&[0x34, 0x12], &command.to_le_bytes()[..], &size.to_le_bytes(), &flags.to_le_bytes(), &[0; 4]];
    [&head.concat(), rest].concat()
}

pub(crate) fn version() -> Vec<u8> {
    message(1, 0, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0")
}

pub(crate) fn dma_map(flags: u32, address: u64, size: u64, offset: u64) -> Vec<u8> {
    let words = [&32_u32.to_le_bytes()[..], &flags.to_le_bytes()];
    let longs = [offset.to_le_bytes(), address.to_le_bytes(), size.to_le_bytes()];
    message(2, 0, &[words.concat(), longs.concat()].concat())
}

pub(crate) fn dma_unmap(flags: u32, address: u64, size: u64) -> Vec<u8> {
    let words = [&24_u32.to_le_bytes()[..], &flags.to_le_bytes()];
    message(3, 0, &[words.concat(), [address.to_le_bytes(), size.to_le_bytes()].concat()].concat())
}

/// Builds `GET_INFO` (4), `GET_REGION_INFO` (5) or `GET_IRQ_INFO` (7).
pub(crate) fn info(command: u16, index: u32) -> Vec<u8> {
    let rest = [&32_u32.to_le_bytes()[..], &[0; 4], &index.to_le_bytes(), &[0; 20]].concat();
    message(command, 0, &rest[..if command == 5 { 32 } else { 16 }])
}

pub(crate) fn set_irqs(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    let words: Vec<u8> =
        [20, flags, index, start, count].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    message(8, 0, &words)
}

pub(crate) fn read(region: u32, offset: u64, count: u32) -> Vec<u8> {
    message(9, 0, &[&offset.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes()].concat())
}

pub(crate) fn write(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let count = u32::try_from(data.len()).unwrap();
    message(10, 0, &[&offset.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes(), data].concat())
}

/// Decodes a reply: its errno, or the part after its header.
pub(crate) fn outcome(reply: &[u8]) -> Result<&[u8], u32> {
    let word = |at: usize| u32::from_le_bytes(reply[at..at + 4].try_into().unwrap());
    assert_eq!(reply[..2], [0x34, 0x12], "the reply has another identifier");
    assert_eq!(
        usize::try_from(word(4)).unwrap(),
        reply.len(),
        "the size field differs from the reply's size"
    );
    match word(8) {
        1 => Ok(&reply[16..]),
        0x21 => Err(word(12)),
        flags => panic!("flags {flags:#x} are not those of a reply"),
    }
}
