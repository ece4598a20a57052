//! The two instructions that submit a descriptor, and the question whether this processor has them.
//!
//! Input: a descriptor, and an address in a mapped portal. Output: the descriptor at the device, or its answer that the queue
//! is full. Invariant: an instruction runs only with the proof that the processor has it.

/// The instructions of this processor that submit descriptors. Only [`detect`](Self::detect) finds some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsaInstructions {
    movdir64b: bool,
    enqcmd: bool,
}

impl DsaInstructions {
    /// No instruction.
    pub const NONE: Self = Self { movdir64b: false, enqcmd: false };

    /// Finds the instructions of this processor, by CPUID (leaf 7, ECX bit 28 MOVDIR64B, bit 29 ENQCMD).
    #[must_use]
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Self {
        if std::arch::x86_64::__cpuid(0).eax < 7 {
            return Self::NONE;
        }
        let features = std::arch::x86_64::__cpuid_count(7, 0).ecx;
        Self { movdir64b: features & 1 << 28 != 0, enqcmd: features & 1 << 29 != 0 }
    }

    /// Finds no instruction: only x86-64 has them.
    #[must_use]
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Self {
        Self::NONE
    }

    /// Returns true if the processor has MOVDIR64B, for dedicated queues.
    #[must_use]
    pub const fn has_movdir64b(self) -> bool {
        self.movdir64b
    }

    /// Returns true if the processor has ENQCMD, for shared queues.
    #[must_use]
    pub const fn has_enqcmd(self) -> bool {
        self.enqcmd
    }
}

/// The answer of a shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnqueueAnswer {
    /// It has the descriptor.
    Accepted,
    /// It has no room; nothing was submitted.
    Retry,
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::EnqueueAnswer;
    use crate::dsa::descriptor::DsaDescriptor;
    use std::arch::asm;

    /// Stores the 64 bytes of a descriptor to a portal at once, behind all earlier stores.
    ///
    /// # Safety
    /// `portal` is an address of a mapped portal, aligned to 64 bytes; the processor has MOVDIR64B; the memory that the
    /// descriptor names stays valid until its record is written or the device was stopped.
    pub(in crate::dsa) unsafe fn movdir64b(portal: *mut u8, descriptor: &DsaDescriptor) {
        // SAFETY: bounds and alignment: a descriptor is 64 bytes that are read, and the caller promises 64 aligned bytes at
        // the portal, which are written. Lifetime: the borrow, and the caller's mapping, for the call. Aliasing: no
        // reference to the portal exists. The fence comes first because the store is weakly ordered: the device must see
        // the list and the cleared records. The assembler block may access any memory, by default.
        unsafe {
            asm!(
                "sfence",
                "movdir64b {portal}, [{descriptor}]",
                portal = in(reg) portal,
                descriptor = in(reg) std::ptr::from_ref(descriptor),
                options(nostack, preserves_flags),
            );
        }
    }

    /// Submits the 64 bytes of a descriptor to a shared queue, behind all earlier stores. The processor fills in the address
    /// space of this process.
    ///
    /// # Safety
    /// As for [`movdir64b`], with ENQCMD.
    pub(in crate::dsa) unsafe fn enqcmd(portal: *mut u8, descriptor: &DsaDescriptor) -> EnqueueAnswer {
        let is_full: u8;
        // SAFETY: as for `movdir64b`; the zero flag, which the instruction sets when the queue has no room, is read in the
        // same block.
        unsafe {
            asm!(
                "sfence",
                "enqcmd {portal}, [{descriptor}]",
                "setz {is_full}",
                portal = in(reg) portal,
                descriptor = in(reg) std::ptr::from_ref(descriptor),
                is_full = out(reg_byte) is_full,
                options(nostack),
            );
        }
        if is_full == 0 { EnqueueAnswer::Accepted } else { EnqueueAnswer::Retry }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{enqcmd, movdir64b};

/// Replaces the instruction on a processor that never has it.
///
/// # Safety
/// Never called: [`DsaInstructions::detect`] finds nothing here.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn movdir64b(_portal: *mut u8, _descriptor: &super::descriptor::DsaDescriptor) {
    unreachable!("the processor has no MOVDIR64B");
}

/// Replaces the instruction on a processor that never has it.
///
/// # Safety
/// Never called: [`DsaInstructions::detect`] finds nothing here.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn enqcmd(
    _portal: *mut u8,
    _descriptor: &super::descriptor::DsaDescriptor,
) -> EnqueueAnswer {
    unreachable!("the processor has no ENQCMD");
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn detection_agrees_with_the_flags_of_the_kernel() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let Some(flags) = text.lines().find(|line| line.starts_with("flags")) else { return };
        let has = |name| flags.split_whitespace().any(|flag| flag == name);
        let found = DsaInstructions::detect();
        // The kernel hides ENQCMD where it does not support it; it hides no MOVDIR64B.
        assert_eq!(found.has_movdir64b(), has("movdir64b"));
        assert!(found.has_enqcmd() || !has("enqcmd"));
    }
}
