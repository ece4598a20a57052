//! The configuration space of the PCI function (PCI Express Base 4.0 section 7.5).
//!
//! Input: reads and writes of a guest or its hypervisor. Output: bytes, and a [`ConfigEffect`] for a write with a side
//! effect. Invariant: only bits that the specification defines as writable ever change.
//!
//! ```text
//!   00h header: class 010802h (NVMe), BAR0 64 bits, no INTx    50h MSI-X: table and pending bits in BAR0
//!   40h power management                                       60h PCI Express, endpoint, function level reset
//! ```

use super::layout::{BAR_BYTES, MSIX_PENDING, MSIX_TABLE, VECTORS};

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 4_096;
/// Vendor: "HW". The PCI-SIG has not assigned it; no Linux driver is bound to it.
pub const VENDOR_ID: u16 = 0x4857;
/// Device: the first of this vendor.
pub const DEVICE_ID: u16 = 0x0001;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const POWER: usize = 0x40;
const MSIX: usize = 0x50;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 8;

/// The side effect of a write to the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigEffect {
    /// No side effect.
    None,
    /// The function must be reset (PCI Express Base 4.0 section 6.6.2).
    FunctionReset,
}

/// The bytes of the configuration space, and a mask of the writable bits.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_BYTES]>,
    writable: Box<[u8; CONFIG_BYTES]>,
}

impl Default for ConfigSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl ConfigSpace {
    /// Creates the configuration space in its reset state.
    #[must_use]
    pub fn new() -> Self {
        let mut space = Self { bytes: Box::new([0; CONFIG_BYTES]), writable: Box::new([0; CONFIG_BYTES]) };
        space.define(0x00, &VENDOR_ID.to_le_bytes(), &[]);
        space.define(0x02, &DEVICE_ID.to_le_bytes(), &[]);
        // Memory space, bus master, INTx disable; status: capabilities.
        space.define(COMMAND, &[], &0x0406_u16.to_le_bytes());
        space.define(0x06, &[0x10], &[]);
        // Revision, programming interface, subclass, class.
        space.define(0x08, &[1, 0x02, 0x08, 0x01], &[]);
        let size_mask = !(BAR_BYTES - 1);
        space.define(BAR0, &[0x04], &size_mask.to_le_bytes());
        space.define(0x2C, &VENDOR_ID.to_le_bytes(), &[]);
        space.define(0x2E, &DEVICE_ID.to_le_bytes(), &[]);
        space.define(0x34, &[0x40], &[]);
        space.put_capabilities();
        space
    }

    fn put_capabilities(&mut self) {
        // Version 3, no D1, no D2, no PME; D0 to D3 without a reset.
        self.define(POWER, &[0x01, 0x50, 0x03, 0x00, 0x08], &[0, 0, 0, 0, 0x03]);
        let size = (VECTORS - 1).to_le_bytes();
        // Enable and function mask.
        self.define(MSIX, &[0x11, 0x60, size[0], size[1]], &[0, 0, 0, 0xC0]);
        self.define(MSIX + 4, &MSIX_TABLE.to_le_bytes(), &[]);
        self.define(MSIX + 8, &MSIX_PENDING.to_le_bytes(), &[]);
        // Version 2, endpoint.
        self.define(EXPRESS, &[0x10, 0x00, 0x02, 0x00], &[]);
        // 256 byte payloads, role-based error reporting, function level reset.
        self.define(EXPRESS + 4, &0x1000_8001_u32.to_le_bytes(), &[]);
        self.define(DEVICE_CONTROL, &[0x10, 0x28], &[0xFF, 0x7F]);
        // 8 GT/s, four lanes: informative only, for tools that display it.
        self.define(EXPRESS + 12, &0x0000_0043_u32.to_le_bytes(), &[0; 4]);
        self.define(EXPRESS + 18, &0x0043_u16.to_le_bytes(), &[]);
    }

    fn define(&mut self, at: usize, bytes: &[u8], writable: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.writable[at..at + writable.len()].copy_from_slice(writable);
    }

    /// Reads bytes; zeroes beyond the end.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        for (step, byte) in into.iter_mut().enumerate() {
            if let Some(at) = byte_index(offset, step) {
                *byte = self.bytes[at];
            }
        }
    }

    /// Writes the writable bits.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::None;
        for (step, &byte) in data.iter().enumerate() {
            let Some(at) = byte_index(offset, step) else {
                continue;
            };
            let mask = self.writable[at];
            self.bytes[at] = (self.bytes[at] & !mask) | (byte & mask);
            // Initiate Function Level Reset reads as zero.
            if at == DEVICE_CONTROL + 1 && byte & 0x80 != 0 {
                effect = ConfigEffect::FunctionReset;
            }
        }
        effect
    }

    /// Returns true if the function may read and write the guest's memory.
    #[must_use]
    pub fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & 0x04 != 0
    }
}

fn byte_index(offset: u64, step: usize) -> Option<usize> {
    usize::try_from(offset).ok()?.checked_add(step).filter(|&at| at < CONFIG_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<const N: usize>(space: &ConfigSpace, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        space.read(at, &mut bytes);
        bytes
    }

    #[test]
    fn the_function_is_an_nvme_controller_with_three_capabilities() {
        let space = ConfigSpace::new();
        assert_eq!(read(&space, 9), [0x02, 0x08, 0x01]);
        let mut at = u64::from(read::<1>(&space, 0x34)[0]);
        let mut found = Vec::new();
        while at != 0 {
            let [id, next] = read(&space, at);
            found.push(id);
            at = u64::from(next);
        }
        assert_eq!(found, [0x01, 0x11, 0x10]);
    }

    #[test]
    fn a_base_address_register_reports_its_size() {
        let mut space = ConfigSpace::new();
        space.write(0x10, &[0xFF; 8]);
        let sized = u64::from_le_bytes(read(&space, 0x10));
        assert_eq!(!(sized & !0xF) + 1, BAR_BYTES);
        assert_eq!(sized & 0xF, 4, "memory, 64 bits, not prefetchable");
    }

    #[test]
    fn only_writable_bits_change() {
        let mut space = ConfigSpace::new();
        let before: [u8; 64] = read(&space, 0);
        space.write(0, &[0xFF; 4]);
        space.write(8, &[0xFF; 8]);
        space.write(0x2C, &[0xFF; 16]);
        assert_eq!(read::<64>(&space, 0), before);
        assert!(!space.is_bus_master());
        space.write(4, &[0xFF, 0xFF]);
        assert_eq!(read(&space, 4), [0x06, 0x04]);
        assert!(space.is_bus_master());
        space.write(u64::MAX, &[1, 2, 3]);
        space.write(4_094, &[1; 10]);
    }

    #[test]
    fn a_function_level_reset_is_reported_and_reads_as_zero() {
        let mut space = ConfigSpace::new();
        assert_eq!(space.write(0x69, &[0x28]), ConfigEffect::None);
        assert_eq!(space.write(0x68, &[0x10, 0xA8]), ConfigEffect::FunctionReset);
        assert_eq!(read(&space, 0x68), [0x10, 0x28]);
    }
}
