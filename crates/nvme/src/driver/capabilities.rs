//! The limits in a controller's registers, read before any command (NVMe Base 2.0 sections 3.1.3.1 and 3.1.3.2).
//!
//! Input: CAP, VS and CRTO. Output: validated limits, or the implausible field. Invariant: no value of a register leads
//! to a doorbell outside the window, a division by zero or an unbounded wait.

use super::error::RequestError;
use crate::data_pointer::PageBytes;
use crate::queue_pair::QUEUE_DEPTH_MAX;
use crate::ring::layout::QueueSlots;
use crate::spec::register::{ControllerRegister, DOORBELLS};
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::width::narrow;

/// The unit of CAP.TO and CRTO.
const READY_UNIT_MS: u64 = 500;
/// Largest supported MPSMIN: pages of 64 KiB.
const PAGE_CODE_MAX: u8 = 4;
/// Most I/O queue pairs that the driver requests.
pub(super) const IO_QUEUES_MAX: u16 = 1_024;

/// An implausible register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapabilityFault {
    /// Every register reads as all ones.
    #[error("every register reads as all ones: the device is gone, or its memory space is switched off")]
    Absent,
    /// VS is no version of NVMe.
    #[error("VS is {version:#010x}, which is no version of NVMe: the device is not an NVMe controller")]
    Version {
        /// VS.
        version: u32,
    },
    /// CAP.MQES is 0.
    #[error("CAP {capabilities:#018x}: a queue of one slot cannot hold an entry (MQES)")]
    QueueEntries {
        /// CAP.
        capabilities: u64,
    },
    /// CAP.MPSMIN is above 64 KiB.
    #[error("CAP {capabilities:#018x}: the smallest page (MPSMIN) is above 64 KiB, which is not supported")]
    PageSize {
        /// CAP.
        capabilities: u64,
    },
    /// CAP.CSS offers no supported command set.
    #[error("CAP {capabilities:#018x}: no supported I/O command set (CSS)")]
    CommandSets {
        /// CAP.
        capabilities: u64,
    },
    /// BAR0 is too short for the doorbells.
    #[error(
        "CAP {capabilities:#018x}: doorbells of queue 1 do not lie in the {bytes:#x} bytes of BAR0 (DSTRD)"
    )]
    Doorbells {
        /// CAP.
        capabilities: u64,
        /// Length of BAR0.
        bytes: usize,
    },
}

/// The value to select in CC.CSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandSetSelection {
    /// 000b.
    NvmOnly,
    /// 110b: each namespace reports its command set.
    All,
}

/// The validated limits of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerCapabilities {
    /// Most slots of a queue.
    pub queue_slots_max: u32,
    /// Time limit of a change of CC.EN.
    pub ready_timeout: Nanos,
    /// Bytes from one doorbell to the next.
    pub doorbell_stride: usize,
    /// The page size in use: the smallest supported, and at least 4 KiB.
    pub page: PageBytes,
    /// CC.MPS of that page.
    pub(super) page_code: u8,
    /// True if weighted round robin with an urgent class is supported.
    pub weighted_round_robin: bool,
    pub(super) sets: CommandSetSelection,
    /// VS: the major version in 31:16, the minor in 15:8.
    pub version: u32,
    /// I/O queues whose doorbells lie in BAR0.
    pub io_queues_max: u16,
}

impl ControllerCapabilities {
    /// Reads and validates the registers.
    ///
    /// # Errors
    /// [`CapabilityFault`] names the field.
    pub fn read(registers: &impl DeviceRegisters) -> Result<Self, CapabilityFault> {
        let bytes = registers.bytes();
        if bytes < DOORBELLS as usize {
            return Err(CapabilityFault::Doorbells { capabilities: 0, bytes });
        }
        let at = |register: ControllerRegister| register.offset() as usize;
        let version =
            registers.load32_present(at(ControllerRegister::Version)).ok_or(CapabilityFault::Absent)?;
        let capabilities = registers.load64(at(ControllerRegister::Capabilities));
        if capabilities == u64::MAX {
            return Err(CapabilityFault::Absent);
        }
        let crto = registers.load32(at(ControllerRegister::ReadyTimeouts));
        Self::validate(capabilities, version, crto, bytes)
    }

    fn validate(capabilities: u64, version: u32, crto: u32, bytes: usize) -> Result<Self, CapabilityFault> {
        let field = |shift: u32, width: u32| -> u8 { narrow(capabilities >> shift & ((1 << width) - 1)) };
        // 1.0 to 9.x; the major version is a small number in every specification so far.
        if !(0x0001_0000..0x000A_0000).contains(&version) {
            return Err(CapabilityFault::Version { version });
        }
        let [low, high, ..] = capabilities.to_le_bytes();
        let queue_slots_max = u32::from(u16::from_le_bytes([low, high])) + 1;
        if queue_slots_max < 2 {
            return Err(CapabilityFault::QueueEntries { capabilities });
        }
        let page_code = field(48, 4);
        let page = PageBytes::of_mps(page_code).filter(|_| page_code <= PAGE_CODE_MAX);
        let page = page.ok_or(CapabilityFault::PageSize { capabilities })?;
        let sets = match field(37, 8) {
            css if css & 1 << 6 != 0 => CommandSetSelection::All,
            css if css & 1 != 0 => CommandSetSelection::NvmOnly,
            // Controllers before 1.1 leave this field 0 and have the NVM command set.
            0 if version < 0x0001_0100 => CommandSetSelection::NvmOnly,
            _ => return Err(CapabilityFault::CommandSets { capabilities }),
        };
        let doorbell_stride = 4_usize << field(32, 4);
        let pairs = (bytes - DOORBELLS as usize) / (2 * doorbell_stride);
        let io_queues_max = narrow(pairs.saturating_sub(1).min(IO_QUEUES_MAX.into()));
        if io_queues_max == 0 {
            return Err(CapabilityFault::Doorbells { capabilities, bytes });
        }
        // CRTO is valid if CAP.CRMS is set, and may then exceed the eight bits of TO.
        let [crto_low, crto_high, ..] = crto.to_le_bytes();
        let crto = if field(59, 2) == 0 { 0 } else { u16::from_le_bytes([crto_low, crto_high]) };
        let units = u64::from(field(24, 8)).max(u64::from(crto)).max(1);
        Ok(Self {
            queue_slots_max,
            ready_timeout: Nanos::from_millis(units * READY_UNIT_MS),
            doorbell_stride,
            page,
            page_code,
            weighted_round_robin: field(17, 2) & 1 != 0,
            sets,
            version,
            io_queues_max,
        })
    }

    /// Returns the slots of a queue for `depth` commands in flight.
    pub(super) fn slots_for(&self, depth: u32) -> Result<QueueSlots, RequestError> {
        // One slot stays empty: a queue of depth commands has one more (NVMeDirect's defect B4).
        let most = (self.queue_slots_max - 1).min(QUEUE_DEPTH_MAX);
        let slots = QueueSlots::new(depth.saturating_add(1)).ok().filter(|_| depth <= most);
        slots.ok_or(RequestError::Depth { depth, max: most })
    }

    /// Returns the offset of a queue's tail doorbell; its head doorbell follows one stride later.
    pub(super) fn doorbell(&self, queue: u16) -> usize {
        DOORBELLS as usize + 2 * usize::from(queue) * self.doorbell_stride
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const BAR: usize = 0x4000;

    fn validate(capabilities: u64) -> Result<ControllerCapabilities, CapabilityFault> {
        ControllerCapabilities::validate(capabilities, 0x0001_0400, 0, BAR)
    }

    /// Uses the values of QEMU's controller.
    #[test]
    fn capabilities_of_a_plain_controller_are_accepted() {
        let found = validate(0x0040_1820_0f01_07ff).unwrap();
        assert_eq!((found.queue_slots_max, found.page, found.doorbell_stride), (2_048, PageBytes::MIN, 4));
        assert_eq!(found.ready_timeout, Nanos::from_millis(7_500));
        assert_eq!((found.weighted_round_robin, found.io_queues_max), (false, 1_024));
        assert_eq!((found.doorbell(0), found.doorbell(3)), (0x1000, 0x1018));
    }

    #[test]
    fn implausible_registers_are_refused_with_the_field() {
        let good = 0x0000_0020_0f01_07ff_u64;
        assert!(validate(good).is_ok());
        assert!(matches!(validate(good & !0xFFFF), Err(CapabilityFault::QueueEntries { .. })));
        assert!(matches!(validate(good | 5 << 48), Err(CapabilityFault::PageSize { .. })));
        assert!(matches!(validate(good & !(1 << 37)), Err(CapabilityFault::CommandSets { .. })));
        assert!(matches!(validate(good | 15 << 32), Err(CapabilityFault::Doorbells { .. })));
        assert_eq!(validate(good | 6 << 32).unwrap().io_queues_max, 23, "a stride of 256 bytes");
        for version in [0, 0x0000_FFFF, 0x0010_0000, u32::MAX] {
            let fault = ControllerCapabilities::validate(good, version, 0, BAR);
            assert_eq!(fault, Err(CapabilityFault::Version { version }));
        }
        assert_eq!(validate(good & !(0xFF << 24)).unwrap().ready_timeout, Nanos::from_millis(500), "never 0");
    }

    #[test]
    fn arbitrary_registers_never_panic() {
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..100_000 {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).rotate_left(17) ^ 0x1234_5678;
            let version = if random & 1 == 0 { 0x0002_0000 } else { 0x0001_0000 };
            if let Ok(found) = ControllerCapabilities::validate(random, version, 0, BAR) {
                assert!(found.doorbell(found.io_queues_max) + 2 * found.doorbell_stride <= BAR);
            }
        }
    }
}
