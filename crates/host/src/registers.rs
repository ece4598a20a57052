//! Registers of a device: words of 32 bits whose loads and stores have effects.
//!
//! In: byte offsets and values. Out: values. Invariant: an access happens once, with its own width, in the order of the
//! program; what a device that is gone answers, all ones, is told apart from a value by [`Registers::present`].

mod mapped;
mod simulated;

pub use mapped::MappedRegisters;
pub use simulated::SimulatedRegisters;

/// What a bus answers for a device that is not there (PCIe: an unsupported request reads as all ones).
pub const ABSENT: u32 = u32::MAX;

/// A window of registers. A clone is another handle to the same.
///
/// # Panics
/// Every method panics on an offset that is not a multiple of 4, or outside the window: offsets are made by us, and what a
/// device says that moves them is checked before it does.
pub trait Registers {
    /// Length of the window.
    fn bytes(&self) -> usize;

    /// Loads 32 bits.
    fn load32(&self, at: usize) -> u32;

    /// Stores 32 bits.
    fn store32(&self, at: usize, value: u32);

    /// Stores 32 bits behind everything that this thread stored in memory before: how a doorbell is rung.
    fn ring32(&self, at: usize, value: u32);

    /// Loads 64 bits as two halves, the low one first, as hosts do for devices that cannot do it at once.
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

    /// Loads 32 bits of a register in which all ones is no value; `None` when the device is gone.
    fn present(&self, at: usize) -> Option<u32> {
        Some(self.load32(at)).filter(|&value| value != ABSENT)
    }
}
