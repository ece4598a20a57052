//! Controller properties: the offset and the bits of each register (NVMe Base 2.0 section 3.1.3).
//!
//! Input: an offset, or the value a host wrote. Output: names. The same table serves a PCIe function's memory and the
//! Property Get and Set commands of fabrics. The controller decides the effect of a write.

macro_rules! registers {
    ($($(#[$doc:meta])* $name:ident = $offset:literal, $bytes:literal;)*) => {
        /// A property of a controller.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ControllerRegister {
            $($(#[$doc])* $name,)*
        }

        impl ControllerRegister {
            /// Every register of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the offset of the register.
            #[must_use]
            pub const fn offset(self) -> u32 {
                match self {
                    $(Self::$name => $offset,)*
                }
            }

            /// Returns the width of the register: 4 or 8 bytes.
            #[must_use]
            pub const fn bytes(self) -> u32 {
                match self {
                    $(Self::$name => $bytes,)*
                }
            }

            /// Returns the register that begins at this offset.
            #[must_use]
            pub const fn at(offset: u32) -> Option<Self> {
                match offset {
                    $($offset => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

registers! {
    /// CAP, Controller Capabilities.
    Capabilities = 0x00, 8;
    /// VS, Version.
    Version = 0x08, 4;
    /// INTMS, Interrupt Mask Set.
    InterruptMaskSet = 0x0C, 4;
    /// INTMC, Interrupt Mask Clear.
    InterruptMaskClear = 0x10, 4;
    /// CC, Controller Configuration.
    Configuration = 0x14, 4;
    /// CSTS, Controller Status.
    Status = 0x1C, 4;
    /// NSSR, NVM Subsystem Reset.
    SubsystemReset = 0x20, 4;
    /// AQA, Admin Queue Attributes.
    AdminQueueAttributes = 0x24, 4;
    /// ASQ, Admin Submission Queue Base Address.
    AdminSubmissionBase = 0x28, 8;
    /// ACQ, Admin Completion Queue Base Address.
    AdminCompletionBase = 0x30, 8;
    /// CRTO, Controller Ready Timeouts.
    ReadyTimeouts = 0x68, 4;
}

/// Offset of the doorbells of a PCIe function: the SQ tail doorbell of queue `y` is at `DOORBELLS + 2y * 4`, its CQ
/// head doorbell 4 bytes after it (CAP.DSTRD is 0).
pub const DOORBELLS: u32 = 0x1000;

/// VS of this controller: NVMe Base 2.0.0.
pub const VERSION_2_0: u32 = 0x0002_0000;

/// The value that a write to NSSR must have: "NVMe".
pub const SUBSYSTEM_RESET_SIGNATURE: u32 = 0x4E56_4D65;

/// The fields of CAP that differ between controllers. The other fields of the register are constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapabilityRegister {
    /// MQES plus one: maximum slots of a queue.
    pub queue_slots_max: u32,
    /// TO: timeout of a host that waits for CSTS.RDY, in units of 500 ms.
    pub ready_timeout_500ms: u8,
    /// AMS: true if a host may select weighted round robin with an urgent class.
    pub weighted_round_robin: bool,
}

impl CapabilityRegister {
    const CONTIGUOUS_QUEUES: u64 = 1 << 16;
    const WEIGHTED_ROUND_ROBIN: u64 = 1 << 17;
    const SUBSYSTEM_RESET: u64 = 1 << 36;
    /// CSS bit 0: the NVM command set alone.
    const NVM_COMMAND_SET: u64 = 1 << 37;
    /// CSS bit 6: several command sets, reported by Identify CNS 1Ch.
    const COMMAND_SETS: u64 = 1 << 43;
    /// CRMS bit 0: CRTO.CRWMT is the timeout of waiting for ready.
    const READY_WITH_MEDIA: u64 = 1 << 59;

    /// Returns the value of CAP. Pages are 4 KiB (MPSMIN and MPSMAX 0), the doorbell stride is 4 bytes (DSTRD 0).
    #[must_use]
    pub const fn to_register(self) -> u64 {
        (self.queue_slots_max.saturating_sub(1) & 0xFFFF) as u64
            | Self::CONTIGUOUS_QUEUES
            | if self.weighted_round_robin { Self::WEIGHTED_ROUND_ROBIN } else { 0 }
            | (self.ready_timeout_500ms as u64) << 24
            | Self::SUBSYSTEM_RESET
            | Self::NVM_COMMAND_SET
            | Self::COMMAND_SETS
            | Self::READY_WITH_MEDIA
    }
}

/// The value of CC that a host wrote (figure 46).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationRegister(pub u32);

/// CC.CSS: the I/O command sets that a host selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSets {
    /// 000b: the NVM command set.
    Nvm,
    /// 110b: all command sets of this controller.
    All,
    /// 111b: none; the admin queue only.
    AdminOnly,
}

/// CC.AMS: the arbitration mechanism between submission queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbitrationMechanism {
    /// 000b: round robin.
    RoundRobin,
    /// 001b: weighted round robin with an urgent class.
    WeightedRoundRobin,
}

/// A kind of shutdown: that of CC.SHN, or the one in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownKind {
    /// 01b: the host has deleted its queues.
    Normal,
    /// 10b: power loss is imminent.
    Abrupt,
}

impl ConfigurationRegister {
    /// CC.EN.
    pub const ENABLE: u32 = 1;
    const SHUTDOWN: u32 = 0b11 << 14;
    /// Bits that a host may change only while CC.EN is 0: CSS, MPS, AMS.
    pub const FIXED_WHILE_ENABLED: u32 = 0b111 << 4 | 0b1111 << 7 | 0b111 << 11;
    /// Every bit that this controller interprets: all but CRIME and the reserved bits.
    pub const MEANINGFUL: u32 =
        Self::ENABLE | Self::FIXED_WHILE_ENABLED | Self::SHUTDOWN | 0b1111 << 16 | 0b1111 << 20;

    const fn bits(self, shift: u32, width: u32) -> u32 {
        (self.0 >> shift) & ((1 << width) - 1)
    }

    /// Returns true if EN is set.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & Self::ENABLE != 0
    }

    /// Returns CSS, or `None` if its value is reserved.
    #[must_use]
    pub const fn command_sets(self) -> Option<CommandSets> {
        match self.bits(4, 3) {
            0b000 => Some(CommandSets::Nvm),
            0b110 => Some(CommandSets::All),
            0b111 => Some(CommandSets::AdminOnly),
            _ => None,
        }
    }

    /// Returns the page shift of MPS: pages have `2 ^ (12 + MPS)` bytes.
    #[must_use]
    pub const fn page_shift(self) -> u32 {
        12 + self.bits(7, 4)
    }

    /// Returns AMS, or `None` if its value is unsupported.
    #[must_use]
    pub const fn arbitration(self) -> Option<ArbitrationMechanism> {
        match self.bits(11, 3) {
            0b000 => Some(ArbitrationMechanism::RoundRobin),
            0b001 => Some(ArbitrationMechanism::WeightedRoundRobin),
            _ => None,
        }
    }

    /// Returns the shutdown that SHN requests. 11b is reserved and requests none.
    #[must_use]
    pub const fn shutdown(self) -> Option<ShutdownKind> {
        match self.bits(14, 2) {
            0b01 => Some(ShutdownKind::Normal),
            0b10 => Some(ShutdownKind::Abrupt),
            _ => None,
        }
    }

    /// Returns IOSQES: log2 of the submission entry size, 0 before the host sets it.
    #[must_use]
    pub const fn submission_entry_shift(self) -> u32 {
        self.bits(16, 4)
    }

    /// Returns IOCQES: log2 of the completion entry size, 0 before the host sets it.
    #[must_use]
    pub const fn completion_entry_shift(self) -> u32 {
        self.bits(20, 4)
    }
}

/// IOSQES and the low half of SQES: entries of 64 bytes.
pub const SUBMISSION_ENTRY_SHIFT: u32 = 6;
/// IOCQES and the low half of CQES: entries of 16 bytes.
pub const COMPLETION_ENTRY_SHIFT: u32 = 4;

/// Bits of CSTS (figure 47).
pub mod status_bit {
    /// RDY: the controller accepts commands.
    pub const READY: u32 = 1;
    /// CFS: the controller failed and requires a reset.
    pub const FATAL: u32 = 1 << 1;
    /// SHST 01b: a shutdown is in progress.
    pub const SHUTDOWN_OCCURRING: u32 = 0b01 << 2;
    /// SHST 10b: a shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 0b10 << 2;
    /// NSSRO: an NVM Subsystem Reset occurred; write 1 to clear.
    pub const SUBSYSTEM_RESET_OCCURRED: u32 = 1 << 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_specified_offsets_and_do_not_overlap() {
        let mut end = 0;
        for &register in ControllerRegister::ALL {
            assert!(register.offset() >= end, "{register:?} overlaps the one before it");
            assert_eq!(register.offset() % register.bytes().min(4), 0);
            assert_eq!(ControllerRegister::at(register.offset()), Some(register));
            end = register.offset() + register.bytes();
        }
        assert_eq!(ControllerRegister::Configuration.offset(), 0x14);
        assert_eq!(ControllerRegister::AdminCompletionBase.offset(), 0x30);
        assert_eq!(ControllerRegister::at(0x18), None);
    }

    #[test]
    fn capability_bits_have_the_specified_positions() {
        let register = CapabilityRegister {
            queue_slots_max: 1_024,
            ready_timeout_500ms: 30,
            weighted_round_robin: true,
        }
        .to_register();
        assert_eq!(register & 0xFFFF, 1_023, "MQES is 0's based");
        assert_eq!((register >> 16) & 1, 1, "CQR");
        assert_eq!((register >> 17) & 0b11, 0b01, "AMS");
        assert_eq!((register >> 24) & 0xFF, 30, "TO");
        assert_eq!((register >> 32) & 0xF, 0, "DSTRD");
        assert_eq!((register >> 36) & 1, 1, "NSSRS");
        assert_eq!(
            (register >> 37) & 0xFF,
            0b0100_0001,
            "CSS: NVM and several sets; bit 7 would say that there are none"
        );
        assert_eq!((register >> 48) & 0xFF, 0, "MPSMIN and MPSMAX");
        assert_eq!((register >> 59) & 0b11, 0b01, "CRMS");
    }
}
