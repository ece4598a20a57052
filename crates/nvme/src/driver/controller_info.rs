//! The host's view of a controller and of its namespaces.
//!
//! Input: the pages of Identify (NVMe Base 2.0 section 5.17, NVM 1.0 section 4.1.5, KV 1.3 section 4.1.5). Output:
//! facts, or why a namespace cannot be used. Invariant: for any content of the pages, no divisor is zero and all text
//! is printable.

use super::capabilities::ControllerCapabilities;
use crate::data_pointer::PageBytes;
use crate::spec::identify::{IdentifyController, IdentifyKv, IdentifyNvm, KvFormat};
use crate::spec::kv::has_retrieve_options;
use crate::spec::status::Status;
use headwater_host::width::narrow;
use zerocopy::FromBytes;

/// Blocks of 512 bytes to 64 KiB.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u32> = 9..=16;
/// NSATTR bit 0: the namespace is write protected now.
const WRITE_PROTECTED: u8 = 1;

/// The properties of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// PCI vendor.
    pub vendor: u16,
    /// SN.
    pub serial: String,
    /// MN.
    pub model: String,
    /// FR.
    pub firmware: String,
    /// SUBNQN; empty for controllers that have none.
    pub subsystem: String,
    /// CNTLID.
    pub id: u16,
    /// VS as major and minor.
    pub version: (u16, u8),
    /// Most bytes that a command transfers; `None` without a limit.
    pub transfer_bytes_max: Option<u64>,
    /// True if acknowledged writes may be lost in a power failure until a flush (VWC).
    pub has_write_cache: bool,
    /// Optional commands of the NVM command set.
    pub optional: OptionalCommands,
    /// True if I/O queues accept SGLs.
    pub has_sgl: bool,
    /// I/O queue pairs that the controller granted.
    pub io_queues: u16,
    /// True if weighted round robin is selected, so that queues have priorities.
    pub weighted_round_robin: bool,
    /// The page size of data pointers.
    pub page: PageBytes,
    /// Most concurrent Abort commands.
    pub(super) aborts_max: u32,
    /// AERL plus one.
    pub(super) events_max: u32,
    /// OAES.
    pub(super) async_events: u32,
    /// RTD3E, microseconds.
    pub(super) shutdown_micros: u32,
    /// NN.
    pub(super) namespaces_max: u32,
}

/// ONCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of one register of capabilities")]
pub struct OptionalCommands {
    /// Compare.
    pub compare: bool,
    /// Dataset Management.
    pub dataset_management: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Verify.
    pub verify: bool,
    /// Copy.
    pub copy: bool,
}

impl ControllerInfo {
    /// Reads Identify Controller. `None` if entries are not 64 and 16 bytes, or the page is too short.
    pub(super) fn read(page: &[u8], capabilities: &ControllerCapabilities) -> Option<Self> {
        let (identify, _) = IdentifyController::ref_from_prefix(page).ok()?;
        let allows = |shifts: u8, shift: u8| shifts & 0xF <= shift && shift <= shifts >> 4;
        if !allows(identify.submission_entry_shifts, 6) || !allows(identify.completion_entry_shifts, 4) {
            return None;
        }
        let oncs = identify.io_commands.get();
        let pages = u32::from(identify.transfer_pages_shift);
        let unit = u64::from(capabilities.page.get());
        let major = narrow(capabilities.version >> 16);
        let [_, minor, ..] = capabilities.version.to_le_bytes();
        Some(Self {
            vendor: identify.pci_vendor.get(),
            serial: text(&identify.serial),
            model: text(&identify.model),
            firmware: text(&identify.firmware),
            subsystem: text(&identify.subsystem_name),
            id: identify.controller_id.get(),
            version: (major, minor),
            // MDTS 0 means no limit; one of 32 or more is too large to matter.
            transfer_bytes_max: (1..=31).contains(&pages).then(|| unit << pages),
            has_write_cache: identify.write_cache & 1 == 1,
            optional: OptionalCommands {
                compare: oncs & 1 != 0,
                dataset_management: oncs & 1 << 2 != 0,
                write_zeroes: oncs & 1 << 3 != 0,
                verify: oncs & 1 << 7 != 0,
                copy: oncs & 1 << 8 != 0,
            },
            has_sgl: matches!(identify.sgl.get() & 0b11, 0b01 | 0b10),
            io_queues: 0,
            weighted_round_robin: false,
            page: capabilities.page,
            aborts_max: u32::from(identify.aborts_max) + 1,
            events_max: u32::from(identify.async_event_requests_max) + 1,
            async_events: identify.async_events.get(),
            shutdown_micros: identify.shutdown_latency.get(),
            namespaces_max: identify.namespaces.get(),
        })
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedNamespace {
    /// NSID.
    pub id: u32,
    /// The kind of its content.
    pub kind: NamespaceKind,
    /// True if it is not write protected.
    pub is_writable: bool,
}

/// The kind of a namespace's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Logical blocks.
    Block {
        /// Bytes of a block, as a power of two: 9 to 16.
        block_shift: u32,
        /// NSZE.
        blocks: u64,
    },
    /// Keys and values.
    KeyValue {
        /// NSZE, bytes.
        bytes: u64,
        /// Longest key.
        key_bytes_max: u16,
        /// Longest value.
        value_bytes_max: u32,
        /// True if a Retrieve has the vendor specific options.
        retrieve_options: bool,
    },
    /// Unsupported content.
    Unusable(NamespaceFault),
}

/// The reason why a namespace cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceFault {
    /// The format has metadata.
    #[error(
        "namespace {namespace} has {bytes} bytes of metadata in each block, which are not supported: format it without \
         (nvme id-ns lists the formats, nvme format --lbaf chooses one; its data is lost)"
    )]
    Metadata {
        /// NSID.
        namespace: u32,
        /// MS.
        bytes: u16,
    },
    /// The format has protection information.
    #[error(
        "namespace {namespace} is formatted with protection information of type {kind}, which is not supported: format \
         it without (nvme format --pi 0; its data is lost)"
    )]
    Protection {
        /// NSID.
        namespace: u32,
        /// DPS in bits 2:0.
        kind: u8,
    },
    /// The block size is not supported.
    #[error(
        "namespace {namespace} has blocks of 2^{shift} bytes; blocks of 512 bytes to 64 KiB are supported"
    )]
    BlockSize {
        /// NSID.
        namespace: u32,
        /// LBADS.
        shift: u32,
    },
    /// The command set is not supported.
    #[error(
        "namespace {namespace} is of command set {command_set:02x}h; NVM (00h) and Key Value (01h) are supported"
    )]
    CommandSet {
        /// NSID.
        namespace: u32,
        /// CSI.
        command_set: u8,
    },
    /// The controller refused Identify for the namespace.
    #[error("Identify of namespace {namespace} failed: {status}")]
    Refused {
        /// NSID.
        namespace: u32,
        /// The status of Identify.
        status: Status,
    },
}

impl ScannedNamespace {
    pub(super) fn unusable(id: u32, fault: NamespaceFault) -> Self {
        Self { id, kind: NamespaceKind::Unusable(fault), is_writable: false }
    }

    /// Reads Identify Namespace of the NVM command set. Returns `None` for an inactive namespace: all zeroes.
    pub(super) fn parse_block(id: u32, page: &[u8]) -> Option<Self> {
        let (identify, _) = IdentifyNvm::ref_from_prefix(page).ok()?;
        let blocks = identify.size.get();
        if blocks == 0 {
            return None;
        }
        // FLBAS: bits 6:5 are the upper bits of the index if there are more than 16 formats.
        let low = identify.format & 0xF;
        let index = if identify.lba_formats >= 16 { (identify.format >> 5 & 0b11) << 4 | low } else { low };
        let format = identify.formats.get(usize::from(index)).map_or(0, |format| format.get());
        let [metadata_low, metadata_high, shift, _] = format.to_le_bytes();
        let (metadata, shift) = (u16::from_le_bytes([metadata_low, metadata_high]), u32::from(shift));
        let kind = match identify.protection & 0b111 {
            _ if !BLOCK_SHIFTS.contains(&shift) => {
                NamespaceKind::Unusable(NamespaceFault::BlockSize { namespace: id, shift })
            }
            0 if metadata == 0 => NamespaceKind::Block { block_shift: shift, blocks },
            0 => NamespaceKind::Unusable(NamespaceFault::Metadata { namespace: id, bytes: metadata }),
            kind => NamespaceKind::Unusable(NamespaceFault::Protection { namespace: id, kind }),
        };
        Some(Self { id, kind, is_writable: identify.attributes & WRITE_PROTECTED == 0 })
    }

    /// Reads Identify Namespace of the Key Value command set. Returns `None` for an inactive namespace.
    pub(super) fn parse_key_value(id: u32, page: &[u8]) -> Option<Self> {
        let (identify, _) = IdentifyKv::ref_from_prefix(page).ok()?;
        let format: &KvFormat = identify.formats.get(usize::from(identify.format & 0xF))?;
        let kind = NamespaceKind::KeyValue {
            bytes: identify.size.get(),
            key_bytes_max: format.key_bytes_max.get(),
            value_bytes_max: format.value_bytes_max.get(),
            retrieve_options: has_retrieve_options(&identify.vendor),
        };
        let is_there = identify.size.get() != 0 || format.key_bytes_max.get() != 0;
        is_there.then_some(Self { id, kind, is_writable: identify.attributes & WRITE_PROTECTED == 0 })
    }
}

/// Returns the CSI in the namespace identification descriptors (CNS 03h); NVM (0) if there is none.
pub(super) fn command_set(page: &[u8]) -> u8 {
    let mut rest = page;
    while let [kind, length, _, _, behind @ ..] = rest {
        if *kind == 0 || usize::from(*length) > behind.len() {
            break;
        }
        let (identifier, next) = behind.split_at(usize::from(*length));
        if let (4, [set]) = (*kind, identifier) {
            return *set;
        }
        rest = next;
    }
    0
}

/// Returns the printable ASCII of a field, without its padding of spaces and zeroes.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let printable = |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' };
    bytes[..end].iter().map(printable).collect::<String>().trim().to_owned()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::spec::identify::{DescriptorKind, DescriptorWriter};
    use zerocopy::little_endian::{U16, U32, U64};
    use zerocopy::{FromZeros, IntoBytes};

    fn block(change: impl FnOnce(&mut IdentifyNvm)) -> Option<ScannedNamespace> {
        let mut page = IdentifyNvm::new_zeroed();
        page.size = U64::new(1_000);
        page.lba_formats = 1;
        page.formats[0] = U32::new(9 << 16);
        page.formats[1] = U32::new(12 << 16 | 8);
        change(&mut page);
        ScannedNamespace::parse_block(3, page.as_bytes())
    }

    #[test]
    fn block_size_comes_from_the_format_in_use() {
        let found = block(|_| ()).unwrap();
        assert_eq!(found.kind, NamespaceKind::Block { block_shift: 9, blocks: 1_000 });
        let found = block(|page| {
            page.lba_formats = 17;
            page.format = 1 << 5 | 1;
            page.formats[17] = U32::new(12 << 16);
        });
        assert_eq!(found.unwrap().kind, NamespaceKind::Block { block_shift: 12, blocks: 1_000 });
        assert_eq!(block(|page| page.size = U64::new(0)), None);
        assert!(!block(|page| page.attributes = 1).unwrap().is_writable);
    }

    #[test]
    fn limits_of_a_key_space_come_from_the_format_in_use() {
        let mut page = IdentifyKv::new_zeroed();
        page.size = U64::new(1 << 30);
        page.kv_formats = 1;
        for (format, bytes) in page.formats.iter_mut().zip([16, 8]) {
            format.key_bytes_max = U16::new(bytes);
            format.value_bytes_max = U32::new(u32::from(bytes) << 10);
        }
        for (format, bytes) in [(0, 16), (1, 8), (0xF1, 8)] {
            page.format = format;
            let found = ScannedNamespace::parse_key_value(3, page.as_bytes()).unwrap();
            let expected = NamespaceKind::KeyValue {
                bytes: 1 << 30,
                key_bytes_max: bytes,
                value_bytes_max: u32::from(bytes) << 10,
                retrieve_options: false,
            };
            assert_eq!(found.kind, expected);
        }
        page.vendor[..5].copy_from_slice(b"\x01HWKV");
        let found = ScannedNamespace::parse_key_value(3, page.as_bytes()).unwrap().kind;
        assert!(matches!(found, NamespaceKind::KeyValue { retrieve_options: true, .. }));
    }

    #[test]
    fn metadata_protection_and_unsupported_block_sizes_are_refused_with_their_reason() {
        let fault = |change: fn(&mut IdentifyNvm)| match block(change).unwrap().kind {
            NamespaceKind::Unusable(fault) => fault,
            other => panic!("{other:?}"),
        };
        let metadata = fault(|page| page.format = 1);
        assert_eq!(metadata, NamespaceFault::Metadata { namespace: 3, bytes: 8 });
        assert!(metadata.to_string().contains("nvme format"));
        assert_eq!(fault(|page| page.protection = 2), NamespaceFault::Protection { namespace: 3, kind: 2 });
        for shift in [0, 8, 17, 255] {
            let found = block(|page| page.formats[0] = U32::new(shift << 16)).unwrap();
            let expected = NamespaceFault::BlockSize { namespace: 3, shift };
            assert_eq!(found.kind, NamespaceKind::Unusable(expected));
        }
    }

    #[test]
    fn command_set_is_found_among_other_descriptors_without_reading_past_the_page() {
        let writer = DescriptorWriter::default().with(DescriptorKind::Uuid, &[7; 16]);
        assert_eq!(command_set(&writer.clone().finish()), 0);
        assert_eq!(command_set(&writer.with(DescriptorKind::CommandSet, &[1]).finish()), 1);
        for page in [&[][..], &[4], &[4, 1, 0, 0], &[4, 200, 0, 0, 1], &[1, 255, 0, 0]] {
            assert_eq!(command_set(page), 0);
        }
    }

    #[test]
    fn text_is_printable_for_any_bytes_from_the_controller() {
        assert_eq!(text(b"  QEMU NVMe Ctrl   "), "QEMU NVMe Ctrl");
        assert_eq!(text(b"a\x1b[2Jb\0junk"), "a?[2Jb");
    }
}
