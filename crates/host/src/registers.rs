//! Registers of a device: words of 32 bits whose loads and stores have effects.
//!
//! Input: byte offsets and values. Output: values. Invariant: an access happens once, with its own width, in program
//! order; [`DeviceRegisters::load32_present`] distinguishes a value from all ones, which the bus returns for a missing device.

mod mapped;
mod simulated;

pub use mapped::MappedRegisters;
pub use simulated::SimulatedRegisters;

/// The value that a bus returns for a missing device (PCIe: an unsupported request reads as all ones).
pub const ALL_ONES: u32 = u32::MAX;

/// A window of registers. A clone is another handle to the same window.
///
/// # Panics
/// Every method panics on an offset that is not a multiple of 4, or outside the window: this side computes offsets, and
/// a device value that moves them is validated first.
pub trait DeviceRegisters {
    /// Returns the length of the window.
    fn bytes(&self) -> usize;

    /// Loads 32 bits.
    fn load32(&self, at: usize) -> u32;

    /// Stores 32 bits.
    fn store32(&self, at: usize, value: u32);

    /// Stores 32 bits after everything that this thread stored in memory before: for ringing a doorbell.
    fn store32_release(&self, at: usize, value: u32);

    /// Loads 64 bits as two halves, the low one first, as hosts do for devices without 64-bit access.
    fn load64(&self, at: usize) -> u64 {
        let low = self.load32(at);
        u64::from(low) | u64::from(self.load32(at + 4)) << 32
    }

    /// Stores 64 bits as two halves, the low one first.
    fn store64(&self, at: usize, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.store32(at, u32::from_le_bytes([a, b, c, d]));
        self.store32(at + 4, u32::from_le_bytes([e, f, g, h]));
    }

    /// Loads 32 bits of a register in which all ones is no valid value; `None` when the device is gone.
    fn load32_present(&self, at: usize) -> Option<u32> {
        Some(self.load32(at)).filter(|&value| value != ALL_ONES)
    }
}
