//! The fields in dwords 10 to 15 of admin commands (NVMe Base 2.0 section 5).
//!
//! Input: a submission entry of the admin queue. Output: its fields, not validated.

use crate::spec::command::SubmissionEntry;

const fn field(dword: u32, shift: u32, width: u32) -> u32 {
    (dword >> shift) & ((1 << width) - 1)
}

const fn byte(dword: u32, index: usize) -> u8 {
    dword.to_le_bytes()[index]
}

/// Returns the halves of a dword, low half first.
#[must_use]
pub const fn halves(dword: u32) -> [u16; 2] {
    let [a, b, c, d] = dword.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// Identify (5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyDwords {
    /// CNS.
    pub view: u8,
    /// CNTID.
    pub controller: u16,
    /// CNSSID: the number of a format, for the views of formats.
    pub format: u16,
    /// CSI.
    pub command_set: u8,
}

impl IdentifyDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let [_, controller] = halves(entry.cdw10.get());
        let [format, _] = halves(entry.cdw11.get());
        Self { view: byte(entry.cdw10.get(), 0), controller, format, command_set: byte(entry.cdw11.get(), 3) }
    }
}

/// Create I/O Completion Queue and Create I/O Submission Queue (5.4, 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateQueueDwords {
    /// QID.
    pub id: u16,
    /// QSIZE plus one.
    pub slots: u32,
    /// PC: physically contiguous.
    pub is_contiguous: bool,
    /// Completion queue: IEN.
    pub interrupts_enabled: bool,
    /// Submission queue: QPRIO.
    pub priority: u32,
    /// Completion queue: IV. Submission queue: CQID.
    pub vector_or_completion_queue: u16,
}

impl CreateQueueDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let [id, size] = halves(entry.cdw10.get());
        let cdw11 = entry.cdw11.get();
        let [_, vector_or_completion_queue] = halves(cdw11);
        Self {
            id,
            slots: u32::from(size) + 1,
            is_contiguous: field(cdw11, 0, 1) == 1,
            interrupts_enabled: field(cdw11, 1, 1) == 1,
            priority: field(cdw11, 1, 2),
            vector_or_completion_queue,
        }
    }
}

/// Get Log Page (5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDwords {
    /// LID.
    pub page: u8,
    /// LSP.
    pub specific: u8,
    /// RAE: true if reading does not clear the event.
    pub retains_event: bool,
    /// NUMD plus one, in dwords.
    pub dwords: u64,
    /// LPO, in bytes.
    pub offset: u64,
    /// OT: true if the offset counts entries, not bytes.
    pub offset_is_index: bool,
    /// CSI.
    pub command_set: u8,
}

impl LogDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let cdw10 = entry.cdw10.get();
        let [_, low] = halves(cdw10);
        let [high, _] = halves(entry.cdw11.get());
        Self {
            page: byte(cdw10, 0),
            specific: byte(field(cdw10, 8, 7), 0),
            retains_event: field(cdw10, 15, 1) == 1,
            dwords: (u64::from(high) << 16 | u64::from(low)) + 1,
            offset: u64::from(entry.cdw13.get()) << 32 | u64::from(entry.cdw12.get()),
            offset_is_index: field(entry.cdw14.get(), 23, 1) == 1,
            command_set: byte(entry.cdw14.get(), 3),
        }
    }
}

/// Get Features and Set Features (5.15, 5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureDwords {
    /// FID.
    pub feature: u8,
    /// Get: SEL.
    pub select: u8,
    /// Set: SV.
    pub saves: bool,
    /// CDW11.
    pub value: u32,
}

impl FeatureDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let cdw10 = entry.cdw10.get();
        Self {
            feature: byte(cdw10, 0),
            select: byte(field(cdw10, 8, 3), 0),
            saves: field(cdw10, 31, 1) == 1,
            value: entry.cdw11.get(),
        }
    }
}

/// Format NVM (5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatDwords {
    /// LBAFU and LBAFL: the format index.
    pub format: u8,
    /// MSET, PI and PIL; not 0 if the host requests metadata or protection information.
    pub protection: u8,
    /// SES: 0 none, 1 erase, 2 cryptographic erase.
    pub secure_erase: u8,
}

impl FormatDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let cdw10 = entry.cdw10.get();
        Self {
            format: byte(field(cdw10, 12, 2) << 4 | field(cdw10, 0, 4), 0),
            protection: byte(field(cdw10, 4, 5), 0),
            secure_erase: byte(field(cdw10, 9, 3), 0),
        }
    }
}

/// Namespace Management and Namespace Attachment (5.22, 5.23): SEL and CSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceDwords {
    /// SEL.
    pub select: u8,
    /// CSI.
    pub command_set: u8,
}

impl NamespaceDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        Self { select: byte(field(entry.cdw10.get(), 0, 4), 0), command_set: byte(entry.cdw11.get(), 3) }
    }
}

/// Sanitize (5.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SanitizeDwords {
    /// SANACT.
    pub action: u8,
    /// AUSE: true if a failed state may be left without another sanitize.
    pub unrestricted_exit: bool,
    /// NDAS: true if blocks shall not be deallocated afterwards.
    pub no_deallocate: bool,
}

impl SanitizeDwords {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let cdw10 = entry.cdw10.get();
        Self {
            action: byte(field(cdw10, 0, 3), 0),
            unrestricted_exit: field(cdw10, 3, 1) == 1,
            no_deallocate: field(cdw10, 9, 1) == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::little_endian::U32;

    fn entry(cdw10: u32, cdw11: u32) -> SubmissionEntry {
        SubmissionEntry { cdw10: U32::new(cdw10), cdw11: U32::new(cdw11), ..SubmissionEntry::default() }
    }

    #[test]
    fn queue_fields_have_the_specified_positions() {
        let create = CreateQueueDwords::from_entry(&entry(0x03FF_0007, 0x0005_0007));
        assert_eq!((create.id, create.slots, create.vector_or_completion_queue), (7, 1_024, 5));
        assert!(create.is_contiguous && create.interrupts_enabled);
        assert_eq!(create.priority, 0b11);
        assert_eq!(CreateQueueDwords::from_entry(&entry(0xFFFF_0001, 0)).slots, 65_536);
    }

    #[test]
    fn log_fields_have_the_specified_positions() {
        let mut get = entry(0x007F_8102, 0);
        get.cdw12 = U32::new(16);
        get.cdw13 = U32::new(1);
        get.cdw14 = U32::new(0x0180_0000);
        let fields = LogDwords::from_entry(&get);
        assert_eq!((fields.page, fields.specific, fields.dwords), (2, 1, 128));
        assert_eq!((fields.offset, fields.command_set), (0x1_0000_0010, 1));
        assert!(fields.retains_event && fields.offset_is_index);
        assert_eq!(LogDwords::from_entry(&entry(0xFFFF_0000, 0xFFFF)).dwords, 1 << 32);
    }

    #[test]
    fn format_fields_have_the_specified_positions() {
        let format = FormatDwords::from_entry(&entry(0b01_0010_0000_0001, 0));
        assert_eq!((format.format, format.protection, format.secure_erase), (0b01_0001, 0, 1));
        assert_eq!(FormatDwords::from_entry(&entry(1 << 4, 0)).protection, 1);
        assert_eq!(FormatDwords::from_entry(&entry(1 << 8, 0)).protection, 1 << 4);
    }
}
