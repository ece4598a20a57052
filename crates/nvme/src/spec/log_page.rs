//! Log pages (NVMe Base 2.0 section 5.16.1).
//!
//! In: fields by name. Out: the bytes of a page. What a page says is decided by the controller.

mod effects;
mod health;
mod media;
mod state;

pub use effects::{COMMAND_EFFECTS_BYTES, FEATURE_EFFECTS_BYTES, command_effects, feature_effects};
pub use health::{ErrorEntry, SmartLog};
pub use media::MediaLog;
pub use state::{AnaGroup, AnaHeader, AnaState, FirmwareLog, SanitizeLog};

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
        /// NVMe-MI Commands Supported and Effects: there are none.
        ManagementEffects = 0x13,
        /// Discovery.
        Discovery = 0x70,
        /// Sanitize Status.
        Sanitize = 0x81,
        /// What the medium was asked to do; vendor specific.
        Media = 0xC0,
    }
}

/// One bit a page: supported (figure 204).
pub const LOG_PAGE_SUPPORTED: u32 = 1;
