//! Registers without a device: words that hold what was stored, until the device is removed.
//!
//! Input: loads and stores. Output: the same values, or all ones after [`SimulatedRegisters::remove`]. A simulated
//! device whose registers have effects implements [`DeviceRegisters`] itself.

use super::{ALL_ONES, DeviceRegisters};
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

/// A window of words. A clone is another handle to the same window.
#[derive(Clone, Debug)]
pub struct SimulatedRegisters {
    words: Arc<[AtomicU32]>,
    removed: Arc<AtomicBool>,
}

impl SimulatedRegisters {
    /// Creates a window of at least `bytes` zero bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let words = (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0)).collect();
        Self { words, removed: Arc::new(AtomicBool::new(false)) }
    }

    /// Removes the device: from now on every load returns all ones, and stores have no effect.
    pub fn remove(&self) {
        self.removed.store(true, Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4), "register {at:#x} is between words");
        &self.words[at / 4]
    }
}

impl DeviceRegisters for SimulatedRegisters {
    fn bytes(&self) -> usize {
        self.words.len() * 4
    }

    fn load32(&self, at: usize) -> u32 {
        let value = self.word(at).load(Ordering::Acquire);
        if self.removed.load(Ordering::Acquire) { ALL_ONES } else { value }
    }

    fn store32(&self, at: usize, value: u32) {
        if !self.removed.load(Ordering::Acquire) {
            self.word(at).store(value, Ordering::Release);
        }
    }

    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn removed_device_reads_all_ones_and_ignores_stores() {
        let registers = SimulatedRegisters::new(0x2000);
        registers.clone().store64(8, 0x1_0000_0002);
        assert_eq!((registers.load64(8), registers.load32_present(8)), (0x1_0000_0002, Some(2)));
        registers.remove();
        registers.store32(8, 3);
        assert_eq!((registers.load64(8), registers.load32_present(8)), (u64::MAX, None));
    }
}
