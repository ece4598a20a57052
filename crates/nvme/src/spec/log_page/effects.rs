//! Commands Supported and Effects, Feature Identifiers Supported and Effects (NVMe Base 2.0 figures 210 to 212 and
//! 237).
//!
//! Input: a command set, or features. Output: one dword for each of 256 admin and 256 I/O opcodes, or 256 features:
//! support, side effects and scope.
//! Invariant: the bits match what the commands do, because hosts quiesce and rescan by them.

use crate::spec::feature::{FeatureId, FeatureScope};
use crate::spec::identify::CommandSet;
use crate::spec::opcode::AdminOpcode;

/// Bytes of the Commands Supported and Effects log page.
pub const COMMAND_EFFECTS_BYTES: usize = 4_096;
/// Bytes of the Feature Identifiers Supported and Effects log page.
pub const FEATURE_EFFECTS_BYTES: usize = 1_024;

/// CSUPP, FSUPP.
const SUPPORTED: u32 = 1;
/// LBCC: logical block content may change.
const CONTENT: u32 = 1 << 1;
/// NCC: a namespace's capabilities may change.
const NAMESPACE: u32 = 1 << 2;
/// NIC: the inventory of namespaces may change.
const INVENTORY: u32 = 1 << 3;
/// CSE 001b: no other command on the same namespace at the same time.
const ALONE_ON_NAMESPACE: u32 = 1 << 16;
/// CSE 010b: no other command on any namespace at the same time.
const ALONE: u32 = 2 << 16;
/// CSP and FSP bit 0: the scope is a namespace.
const SCOPE_NAMESPACE: u32 = 1 << 20;
/// CSP and FSP bit 1: the scope is the controller.
const SCOPE_CONTROLLER: u32 = 1 << 21;
/// CSP and FSP bit 5: the scope is the subsystem.
const SCOPE_SUBSYSTEM: u32 = 1 << 25;

/// I/O opcodes of the NVM command set and their effects (NVM 1.0 section 3).
const NVM: [(u8, u32); 8] = [
    (0x00, 0),       // Flush
    (0x01, CONTENT), // Write
    (0x02, 0),       // Read
    (0x05, 0),       // Compare
    (0x08, CONTENT), // Write Zeroes
    (0x09, CONTENT), // Dataset Management
    (0x0C, 0),       // Verify
    (0x19, CONTENT), // Copy
];

/// I/O opcodes of the Key Value command set and their effects (KV 1.0d figure 5).
const KEY_VALUE: [(u8, u32); 6] = [
    (0x00, 0),       // Flush
    (0x01, CONTENT), // Store
    (0x02, 0),       // Retrieve
    (0x06, 0),       // List
    (0x10, CONTENT), // Delete
    (0x14, 0),       // Exist
];

const fn admin_effects(opcode: AdminOpcode) -> u32 {
    match opcode {
        AdminOpcode::FormatNvm => CONTENT | NAMESPACE | ALONE_ON_NAMESPACE | SCOPE_NAMESPACE,
        AdminOpcode::Sanitize => CONTENT | ALONE | SCOPE_SUBSYSTEM,
        AdminOpcode::NamespaceManagement | AdminOpcode::NamespaceAttachment => INVENTORY | SCOPE_SUBSYSTEM,
        _ => SCOPE_CONTROLLER,
    }
}

/// Builds the Commands Supported and Effects log page. `admin` are the opcodes that the controller supports.
#[must_use]
pub fn command_effects(admin: impl Iterator<Item = AdminOpcode>, set: Option<CommandSet>) -> Vec<u8> {
    let mut effects = [0_u32; 512];
    for opcode in admin {
        effects[usize::from(opcode.number())] = SUPPORTED | admin_effects(opcode);
    }
    let io: &[(u8, u32)] = match set {
        Some(CommandSet::Nvm) => &NVM,
        Some(CommandSet::KeyValue) => &KEY_VALUE,
        None => &[],
    };
    for &(opcode, changes) in io {
        effects[256 + usize::from(opcode)] = SUPPORTED | changes | SCOPE_NAMESPACE;
    }
    let mut page: Vec<u8> = effects.into_iter().flat_map(u32::to_le_bytes).collect();
    page.resize(COMMAND_EFFECTS_BYTES, 0);
    page
}

/// Builds the Feature Identifiers Supported and Effects log page.
#[must_use]
pub fn feature_effects(features: impl Iterator<Item = FeatureId>) -> Vec<u8> {
    let mut effects = [0_u32; 256];
    for feature in features {
        effects[usize::from(feature.number())] = SUPPORTED
            | match feature.scope() {
                FeatureScope::Controller => SCOPE_CONTROLLER,
                FeatureScope::Namespace => SCOPE_NAMESPACE,
            };
    }
    effects.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_indexed_by_opcode() {
        let page = command_effects(AdminOpcode::ALL.iter().copied(), Some(CommandSet::KeyValue));
        let at = |index: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| page[4 * index + byte]));
        assert_eq!(page.len(), 4096);
        assert_eq!(at(0x06) & 1, 1, "Identify");
        assert_eq!(at(0x80) & 0b110, 0b110, "Format changes content and namespaces");
        assert_eq!(at(256 + 0x10) & 0b11, 0b11, "Delete changes content");
        assert_eq!(at(256 + 0x0C), 0, "Verify is not a Key Value command");
        assert_eq!(feature_effects(FeatureId::ALL.iter().copied()).len(), 1024);
    }
}
