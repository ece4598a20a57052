//! Sets of opcodes, as bits and as the text of the kernel's `idxd` driver.

use super::descriptor::DsaOpcode;

/// The opcodes that a device knows, or that a queue permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsaOpcodeSet(pub(super) u64);

impl DsaOpcodeSet {
    /// Every opcode that this driver uses.
    pub const ALL: Self = {
        let (mut set, mut nth) = (0_u64, 0);
        while nth < DsaOpcode::ALL.len() {
            set |= 1_u64 << (DsaOpcode::ALL[nth] as u8);
            nth += 1;
        }
        Self(set)
    };

    /// Returns the set of the named opcodes.
    #[must_use]
    pub fn of(opcodes: &[DsaOpcode]) -> Self {
        Self(opcodes.iter().fold(0, |set, opcode| set | 1 << (*opcode as u8)))
    }

    /// Returns true if the set has the opcode.
    #[must_use]
    pub const fn contains(self, opcode: DsaOpcode) -> bool {
        self.0 & 1 << (opcode as u8) != 0
    }

    /// Returns the opcodes of this driver that are in the set, in the order of their codes.
    pub fn opcodes(self) -> impl Iterator<Item = DsaOpcode> {
        DsaOpcode::ALL.into_iter().filter(move |opcode| self.contains(*opcode))
    }

    /// Parses `op_cap` or `op_config`: four words of 64 bits, the low one first, as kernels before 6.0 write it; or groups of 32
    /// bits, the low one last, as later ones do.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.contains(',') {
            let mut groups = text.rsplit(',').map(|group| u32::from_str_radix(group.trim(), 16));
            let (low, high) = (groups.next()?.ok()?, groups.next()?.ok()?);
            return groups.all(|group| group.is_ok()).then_some(Self(u64::from(high) << 32 | u64::from(low)));
        }
        let word = text.split_whitespace().next()?;
        u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok().map(Self)
    }
}
