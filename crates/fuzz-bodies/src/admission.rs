//! Entries of an untrusted process for an SSD that the node owns. An admitted entry names blocks of the grant, memory
//! that the process registered for the SSD, a known command, and nothing else. Every entry that a simple model admits
//! is admitted.
//!
//! Input: 8 bytes that choose the grant, 64 bytes of entry, and 192 bytes of memory contents. The entry is validated
//! twice, the second time with the rest of the input as memory contents: no state of the first time remains.

use headwater_dma::iova::{ClientMemory, DeviceMapping, Iova};
use headwater_frontend::mediated::{AdmittedEntry, EntryAdmission};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::driver::{NamespaceKind, ScannedNamespace};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::RingClient;
use headwater_ssd::nvme::rings::rights::{AccessLevel, ClientRights, NamespaceRights};
use std::ops::Range;

const HEAD: usize = 8;
const ENTRY: usize = 64;
/// Bytes of a region, and the process's address of the first one. The second follows directly, the third after a gap.
const REGION: u64 = 0x8000;
const BASE: u64 = 0x10_0000;
/// Regions: the process's address, and the SSD's; the last one is not mapped for the SSD.
const REGIONS: [(u64, Option<u64>); 3] =
    [(BASE, Some(0x7000_0000)), (BASE + REGION, Some(0x3000_0000)), (BASE + 3 * REGION, None)];
/// Block namespaces: number, block shift, blocks. Two numbers have the same lowest byte; number 2 holds keys.
const BLOCK_NAMESPACES: [(u32, u32, u64); 3] = [(1, 12, 1_000), (3, 9, u64::MAX), (257, 12, 1_000)];
const KEY_NAMESPACE: u32 = 2;
/// Maximum bytes of a command.
const COMMAND_BYTES_MAX: u64 = 0x7000;

/// A device mapping that is only an address of the SSD.
#[derive(Debug)]
struct SsdAddress(u64);

impl DeviceMapping for SsdAddress {
    fn address(&self) -> u64 {
        self.0
    }
}

/// The grant of the process, as the model holds it.
struct GrantModel {
    namespace: u32,
    access: AccessLevel,
    blocks: Option<Range<u64>>,
}

impl GrantModel {
    fn of(head: [u8; HEAD]) -> Self {
        let [kind, namespace, start @ .., low, high] = head;
        let start = u64::from(u32::from_le_bytes(start));
        // Near the largest number too.
        let start = if kind & 4 == 0 { start } else { u64::MAX - start };
        let end = start.saturating_add(u64::from(u16::from_le_bytes([low, high])));
        Self {
            namespace: u32::from(namespace % 4),
            access: if kind & 1 == 0 { AccessLevel::Read } else { AccessLevel::Write },
            blocks: (kind & 2 == 0).then_some(start..end),
        }
    }

    fn rights(&self) -> ClientRights {
        let own = NamespaceRights { access: self.access, blocks: self.blocks.clone() };
        let id = u8::try_from(self.namespace).expect("below 4");
        ClientRights::none().with_namespace(NamespaceId(id), own)
    }

    /// Returns true if the process may name these blocks of the namespace.
    fn allows(&self, start: u64, blocks: u64, size: u64) -> bool {
        let end = u128::from(start) + u128::from(blocks);
        let inside = |first: u64, behind: u64| start >= first && end <= u128::from(behind);
        inside(0, size) && self.blocks.as_ref().is_none_or(|own| inside(own.start, own.end))
    }
}

fn namespaces() -> Vec<ScannedNamespace> {
    let keys = NamespaceKind::KeyValue {
        bytes: 1 << 20,
        key_bytes_max: 16,
        value_bytes_max: 4_096,
        retrieve_options: false,
    };
    let blocks =
        BLOCK_NAMESPACES.map(|(id, block_shift, blocks)| (id, NamespaceKind::Block { block_shift, blocks }));
    let all = blocks.into_iter().chain([(KEY_NAMESPACE, keys)]);
    all.map(|(id, kind)| ScannedNamespace { id, kind, is_writable: true }).collect()
}

/// Returns the SSD's address of every byte of a range of the process, if each has one.
fn ssd_addresses(start: u64, bytes: u64) -> Option<Vec<u64>> {
    let one = |at: u64| {
        let (base, lent) = REGIONS.into_iter().find(|(base, _)| at >= *base && at - base < REGION)?;
        lent.map(|lent| lent + (at - base))
    };
    (0..bytes).map(|index| start.checked_add(index).and_then(one)).collect()
}

/// The expected result of an entry.
struct ExpectedEntry {
    /// Dwords 10 to 12.
    words: [u32; 3],
    bytes: u64,
    ranges: Vec<(u64, u32)>,
}

/// Computes the expected result, with no code of the node.
fn model(entry: &[u8; ENTRY], grant: &GrantModel, read: impl Fn(u64) -> Option<u8>) -> Option<ExpectedEntry> {
    let dword = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
    let qword = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
    let [opcode, flags, ..] = *entry;
    let (_, shift, size) =
        BLOCK_NAMESPACES.into_iter().find(|(id, ..)| *id == dword(4) && *id == grant.namespace)?;
    let (start, count) = (qword(40), u64::from(dword(48) & 0xFFFF) + 1);
    let moved = count << shift;
    // Limited Retry and Force Unit Access; Write Zeroes may deallocate.
    let options = if opcode == 8 { 0xC200_0000 } else { 0xC000_0000 };
    let is_plain = flags == 0 && dword(48) & !(options | 0xFFFF) == 0;
    let words = [dword(40), dword(44), dword(48)];
    let may_write = grant.access == AccessLevel::Write;
    let pointer = qword(24);
    let is_there = |bytes| qword(32) == 0 && ssd_addresses(pointer, bytes).is_some();
    let mut expected = ExpectedEntry { words, bytes: 0, ranges: Vec::new() };
    let admitted = match opcode {
        0 => {
            expected.words = [0; 3];
            flags == 0
        }
        1 | 2 | 5 => {
            expected.bytes = moved;
            let may = opcode != 1 || may_write;
            is_plain
                && may
                && moved <= COMMAND_BYTES_MAX
                && grant.allows(start, count, size)
                && is_there(moved)
        }
        8 => is_plain && may_write && grant.allows(start, count, size),
        9 => {
            let ranges = u64::from(dword(40) & 0xFF) + 1;
            expected.words = [dword(40) & 0xFF, 4, 0];
            for range in 0..ranges {
                let mut bytes = [0; 16];
                for (index, byte) in (0..).zip(&mut bytes) {
                    *byte = read(pointer.checked_add(range * 16 + index)?)?;
                }
                let [_, _, _, _, a, b, c, d, start @ ..] = bytes;
                expected.ranges.push((u64::from_le_bytes(start), u32::from_le_bytes([a, b, c, d])));
            }
            let inside = |&(start, blocks): &(u64, u32)| grant.allows(start, blocks.into(), size);
            flags == 0
                && dword(44) & 4 != 0
                && qword(32) == 0
                && may_write
                && expected.ranges.iter().all(inside)
        }
        _ => false,
    };
    admitted.then_some(expected)
}

/// Validates the entry, and checks the result against the model.
fn check(
    entry: &[u8; ENTRY],
    grant: &GrantModel,
    client: &RingClient,
    admission: &mut EntryAdmission,
    read: impl Fn(u64) -> Option<u8>,
) {
    let words = std::array::from_fn(|word| {
        u64::from_le_bytes(entry[word * 8..word * 8 + 8].try_into().expect("eight bytes"))
    });
    let submitted = SubmissionEntry::from_words(words);
    let found = admission.validate(&submitted, client, &namespaces(), COMMAND_BYTES_MAX);
    let expected = model(entry, grant, read);
    let (AdmittedEntry { entry: own, data }, expected) = match (found, expected) {
        (Ok(admitted), Some(expected)) => (admitted, expected),
        (Err(status), None) => {
            assert!(!status.is_success() && admission.runs().is_empty() && admission.ranges().is_empty());
            return;
        }
        (found, expected) => panic!("admitted {}, by the model {}", found.is_ok(), expected.is_some()),
    };
    let [low, high, count] = expected.words;
    let clean = [
        u64::from(entry[0]) | u64::from(grant.namespace) << 32,
        0,
        0,
        0,
        0,
        u64::from(low) | u64::from(high) << 32,
        u64::from(count),
        0,
    ];
    assert_eq!(own.to_words(), clean, "the admitted entry has an unchecked field");
    let mut addresses = Vec::new();
    for run in admission.runs() {
        addresses.extend(run.start.0..run.start.0 + u64::from(run.bytes));
    }
    let pointer = u64::from_le_bytes(entry[24..32].try_into().expect("eight bytes"));
    assert_eq!(Some(addresses), ssd_addresses(pointer, expected.bytes), "memory outside the named range");
    assert_eq!(u64::try_from(data.bytes()), Ok(expected.bytes), "the held bytes are not the named ones");
    let ranges: Vec<_> =
        admission.ranges().iter().map(|range| (range.start.get(), range.blocks.get())).collect();
    assert_eq!(ranges, expected.ranges, "ranges that the model did not validate");
    assert!(admission.ranges().iter().all(|range| range.context.get() == 0), "hints were not cleared");
}

/// Validates an entry of an untrusted process twice, with two contents of memory.
///
/// # Panics
/// If the result differs from that of the model, or if an unchecked field is submitted.
pub fn body(bytes: &[u8]) {
    let mut head = [0; HEAD + ENTRY];
    let known = bytes.len().min(head.len());
    head[..known].copy_from_slice(&bytes[..known]);
    let (choice, entry) = head.split_first_chunk().expect("the head is longer");
    let entry: [u8; ENTRY] = entry.try_into().expect("the rest of the head");
    let grant = GrantModel::of(*choice);
    let mut memory = ClientMemory::new();
    let mut regions = Vec::new();
    for (start, lent) in REGIONS {
        let region = SharedMemory::anonymous(usize::try_from(REGION).expect("small")).expect("memory");
        regions.push((start, region.clone()));
        let registered = match lent {
            Some(lent) => memory.register_mapped(Iova(start), region, Box::new(SsdAddress(lent))),
            None => memory.register(Iova(start), region),
        };
        registered.expect("regions do not overlap");
    }
    let client = RingClient { memory, rights: grant.rights(), address_mode: Default::default() };
    let mut admission = EntryAdmission::default();
    let (first, second) = bytes[known..].split_at((bytes.len() - known).min(192));
    for content in [first, second] {
        let content = &content[..content.len().min(4_096)];
        for (_, region) in &regions {
            region.copy_out(0, content).expect("shorter than a region");
        }
        // Lists can then begin in one region and end in the next.
        let [(_, first), ..] = &regions[..] else { unreachable!("there are three") };
        let end = usize::try_from(REGION).expect("small") - 32;
        first.copy_out(end, &content[..content.len().min(32)]).expect("at the end of the region");
        let read = |at: u64| {
            let (base, region) = regions.iter().find(|(base, _)| at >= *base && at - base < REGION)?;
            let mut byte = [0];
            region.copy_in(usize::try_from(at - base).ok()?, &mut byte).ok()?;
            Some(byte[0])
        };
        check(&entry, &grant, &client, &mut admission, read);
    }
}
