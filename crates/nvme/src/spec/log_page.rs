//! Log pages (NVMe Base 2.0 section 5.16.1).
//!
//! Input: fields by name. Output: the bytes of a page. The controller chooses the values.

mod effects;
mod health;
mod media;
mod subsystem_state;

pub use effects::{COMMAND_EFFECTS_BYTES, FEATURE_EFFECTS_BYTES, command_effects, feature_effects};
pub use health::{ErrorEntry, SmartLog};
pub use media::MediaLog;
pub use subsystem_state::{AnaGroup, AnaHeader, AnaState, FirmwareLog, SanitizeLog};

use super::numbered::numbered;

numbered! {
    /// A log page of this controller (LID, figure 202).
    LogPage {
        /// Supported Log Pages.
        SupportedPages = 0x00,
        /// Error Information.
        Error = 0x01,
        /// SMART / Health Information.
        Health = 0x02,
        /// Firmware Slot Information.
        FirmwareSlots = 0x03,
        /// Changed Namespace List.
        ChangedNamespaces = 0x04,
        /// Commands Supported and Effects.
        CommandEffects = 0x05,
        /// Asymmetric Namespace Access.
        Ana = 0x0C,
        /// Feature Identifiers Supported and Effects.
        FeatureEffects = 0x12,
        /// NVMe-MI Commands Supported and Effects: no command is supported.
        ManagementEffects = 0x13,
        /// Discovery.
        Discovery = 0x70,
        /// Sanitize Status.
        Sanitize = 0x81,
        /// Media log: writes and erases of the medium; vendor specific.
        Media = 0xC0,
    }
}

/// The bit of a page's entry that marks it as supported (figure 204).
pub const LOG_PAGE_SUPPORTED: u32 = 1;
