//! The data pointer of a capsule (section 3.3.3; Base 2.0 section 4.1.2): in-capsule data by offset, or data in data
//! PDUs.
//!
//! Input: an entry, and the length of its capsule's data.
//! Output: a [`CapsuleData`], or the status that refuses the descriptor.
//! Invariant: in-capsule data lies inside the capsule.

use crate::spec::command::SubmissionEntry;
use crate::spec::opcode::DataTransfer;
use crate::spec::status::Status;
use zerocopy::little_endian::U64;

/// SGL identifier of a Data Block with an offset into the capsule: type 0h, sub type 1h.
const IN_CAPSULE: u8 = 0x01;
/// SGL identifier of a Transport Data Block: type 5h, sub type Ah.
const TRANSPORT: u8 = 0x5A;
/// PSDT 01b in byte 1 of an entry: SGLs, and metadata (not used here) by address.
const PSDT_SGL: u8 = 0b01 << 6;
/// All bits of PSDT.
const PSDT: u8 = 0b11 << 6;
/// Opcode of Fabrics commands.
const FABRICS: u8 = 0x7F;

/// The location of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapsuleData {
    /// No data.
    None,
    /// Data in the capsule.
    InCapsule {
        /// Offset in the capsule's data.
        offset: u32,
        /// Length in bytes.
        bytes: u32,
    },
    /// Data transferred by data PDUs.
    Transport {
        /// Maximum length in bytes.
        bytes: u32,
    },
}

impl CapsuleData {
    /// Decodes the descriptor of an entry whose capsule holds `capsule_bytes` of data.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for PRPs, [`Status::SGL_TYPE_INVALID`] for another descriptor or in-capsule data for a
    /// command that reads, [`Status::SGL_OFFSET_INVALID`] and [`Status::DATA_SGL_LENGTH_INVALID`] for data outside the
    /// capsule.
    pub fn of(entry: &SubmissionEntry, capsule_bytes: u32) -> Result<Self, Status> {
        let direction = direction(entry);
        if direction == DataTransfer::None {
            return Ok(Self::None);
        }
        if entry.opcode != FABRICS && entry.flags & PSDT != PSDT_SGL {
            return Err(Status::INVALID_FIELD);
        }
        let [a, b, c, d, _, _, _, identifier] = entry.prp2.to_bytes();
        let bytes = u32::from_le_bytes([a, b, c, d]);
        match identifier {
            TRANSPORT => Ok(Self::Transport { bytes }),
            IN_CAPSULE if direction == DataTransfer::HostToController => {
                let offset = u32::try_from(entry.prp1.get()).map_err(|_| Status::SGL_OFFSET_INVALID)?;
                let room = capsule_bytes.checked_sub(offset).ok_or(Status::SGL_OFFSET_INVALID)?;
                if bytes > room {
                    return Err(Status::DATA_SGL_LENGTH_INVALID);
                }
                Ok(Self::InCapsule { offset, bytes })
            }
            _ => Err(Status::SGL_TYPE_INVALID),
        }
    }

    /// Writes the descriptor into an entry, as a host does.
    pub fn write(self, entry: &mut SubmissionEntry) {
        let (address, bytes, identifier) = match self {
            Self::None => (0, 0, TRANSPORT),
            Self::InCapsule { offset, bytes } => (u64::from(offset), bytes, IN_CAPSULE),
            Self::Transport { bytes } => (0, bytes, TRANSPORT),
        };
        let [a, b, c, d] = bytes.to_le_bytes();
        entry.flags = entry.flags & !PSDT | PSDT_SGL;
        entry.prp1 = U64::new(address);
        entry.prp2 = U64::from_bytes([a, b, c, d, 0, 0, 0, identifier]);
    }

    /// Returns the length of the data in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule { bytes, .. } | Self::Transport { bytes } => bytes,
        }
    }
}

/// Returns the direction of the data: the low bits of the opcode, or for Fabrics commands those of FCTYPE (Base 2.0
/// figure 460).
#[must_use]
pub fn direction(entry: &SubmissionEntry) -> DataTransfer {
    let [fabrics_type, ..] = entry.namespace.to_bytes();
    DataTransfer::of_opcode(if entry.opcode == FABRICS { fabrics_type } else { entry.opcode })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(opcode: u8, data: CapsuleData) -> SubmissionEntry {
        let mut entry = SubmissionEntry { opcode, ..SubmissionEntry::default() };
        data.write(&mut entry);
        entry
    }

    #[test]
    fn capsule_data_round_trips_through_an_entry() {
        for data in [
            CapsuleData::InCapsule { offset: 0, bytes: 512 },
            CapsuleData::InCapsule { offset: 512, bytes: 512 },
            CapsuleData::Transport { bytes: 1 << 20 },
        ] {
            assert_eq!(CapsuleData::of(&entry(0x01, data), 1_024), Ok(data));
        }
        assert_eq!(
            CapsuleData::of(&entry(0x00, CapsuleData::Transport { bytes: 9 }), 0),
            Ok(CapsuleData::None)
        );
    }

    #[test]
    fn descriptors_outside_the_capsule_are_refused() {
        let inside = |offset, bytes| entry(0x01, CapsuleData::InCapsule { offset, bytes });
        assert_eq!(CapsuleData::of(&inside(0, 513), 512), Err(Status::DATA_SGL_LENGTH_INVALID));
        assert_eq!(CapsuleData::of(&inside(513, 0), 512), Err(Status::SGL_OFFSET_INVALID));
        let mut far = inside(0, 1);
        far.prp1 = U64::new(1 << 32);
        assert_eq!(CapsuleData::of(&far, 512), Err(Status::SGL_OFFSET_INVALID));
        // A read cannot return data in its command capsule.
        let read = entry(0x02, CapsuleData::InCapsule { offset: 0, bytes: 512 });
        assert_eq!(CapsuleData::of(&read, 512), Err(Status::SGL_TYPE_INVALID));
    }

    #[test]
    fn prps_and_other_descriptors_are_refused() {
        let mut prp = entry(0x02, CapsuleData::Transport { bytes: 4_096 });
        prp.flags = 0;
        assert_eq!(CapsuleData::of(&prp, 0), Err(Status::INVALID_FIELD));
        for identifier in (0..=u8::MAX).filter(|&identifier| identifier != TRANSPORT) {
            let mut other = entry(0x02, CapsuleData::Transport { bytes: 4_096 });
            other.prp2 = U64::from_bytes([0, 16, 0, 0, 0, 0, 0, identifier]);
            assert_eq!(CapsuleData::of(&other, 4_096), Err(Status::SGL_TYPE_INVALID));
        }
    }
}
