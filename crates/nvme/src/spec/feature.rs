//! Features (NVMe Base 2.0 section 5.27.1, figure 316; KV 1.0d section 4.1.3).
//!
//! Input: a feature identifier. Output: its name, its scope, whether it is changeable, and its data length.

use super::numbered::numbered;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $scope:ident, $change:ident, $bytes:literal;)*) => {
        numbered! {
            /// A feature of this controller (FID).
            FeatureId {
                $($(#[$doc])* $name = $number,)*
            }
        }

        impl FeatureId {
            /// Returns the scope of the feature.
            #[must_use]
            pub const fn scope(self) -> FeatureScope {
                match self {
                    $(Self::$name => FeatureScope::$scope,)*
                }
            }

            /// Returns whether a host may change the feature.
            #[must_use]
            pub const fn change(self) -> FeatureChangeability {
                match self {
                    $(Self::$name => FeatureChangeability::$change,)*
                }
            }

            /// Returns the bytes of the feature's data buffer, 0 if it uses dwords only.
            #[must_use]
            pub const fn data_bytes(self) -> u32 {
                match self {
                    $(Self::$name => $bytes,)*
                }
            }
        }
    };
}

/// The scope of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureScope {
    /// One value for the controller.
    Controller,
    /// One value for each namespace.
    Namespace,
}

/// The changeability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureChangeability {
    /// Changeable by Set Features.
    Changeable,
    /// Not changeable by a host.
    Fixed,
}

features! {
    /// Arbitration.
    Arbitration = 0x01, Controller, Changeable, 0;
    /// Power Management.
    PowerManagement = 0x02, Controller, Changeable, 0;
    /// Temperature Threshold.
    TemperatureThreshold = 0x04, Controller, Changeable, 0;
    /// Error Recovery.
    ErrorRecovery = 0x05, Namespace, Changeable, 0;
    /// Volatile Write Cache.
    WriteCache = 0x06, Controller, Fixed, 0;
    /// Number of Queues.
    NumberOfQueues = 0x07, Controller, Changeable, 0;
    /// Interrupt Coalescing.
    InterruptCoalescing = 0x08, Controller, Changeable, 0;
    /// Interrupt Vector Configuration.
    InterruptVector = 0x09, Controller, Changeable, 0;
    /// Write Atomicity Normal.
    WriteAtomicity = 0x0A, Controller, Changeable, 0;
    /// Asynchronous Event Configuration.
    AsyncEvents = 0x0B, Controller, Changeable, 0;
    /// Timestamp.
    Timestamp = 0x0E, Controller, Changeable, 8;
    /// Keep Alive Timer.
    KeepAliveTimer = 0x0F, Controller, Changeable, 0;
    /// Host Behavior Support.
    HostBehavior = 0x16, Controller, Changeable, 512;
    /// I/O Command Set Profile.
    CommandSetProfile = 0x19, Controller, Changeable, 0;
    /// Key Value Configuration.
    KeyValueConfiguration = 0x20, Namespace, Changeable, 0;
    /// Host Identifier.
    HostIdentifier = 0x81, Controller, Changeable, 16;
}

/// The requested value of a feature (SEL of Get Features, figure 195).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSelect {
    /// 000b.
    Current,
    /// 001b.
    Default,
    /// 010b.
    Saved,
    /// 011b: the capabilities of the feature.
    Supported,
}

impl FeatureSelect {
    /// Returns the selection for a value of SEL, or `None` if it is reserved.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Current),
            1 => Some(Self::Default),
            2 => Some(Self::Saved),
            3 => Some(Self::Supported),
            _ => None,
        }
    }
}

/// Returns dword 0 of a Get Features completion for [`FeatureSelect::Supported`].
#[must_use]
pub const fn supported_dword(feature: FeatureId) -> u32 {
    let specific = matches!(feature.scope(), FeatureScope::Namespace);
    let changeable = matches!(feature.change(), FeatureChangeability::Changeable);
    (specific as u32) << 1 | (changeable as u32) << 2
}

/// Bits of the Asynchronous Event Configuration (figure 329) and, from bit 8 on, of OAES.
pub mod async_event_bit {
    /// Critical warnings of SMART: bits 7:0 of a critical warning.
    pub const SMART: u32 = 0xFF;
    /// A namespace changed.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Asymmetric access changed.
    pub const ANA: u32 = 1 << 11;
    /// The discovery log changed.
    pub const DISCOVERY_LOG: u32 = 1 << 31;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_round_trip_through_numbers() {
        for number in 0..=u8::MAX {
            if let Some(feature) = FeatureId::from_number(number) {
                assert_eq!(feature.number(), number);
            }
        }
        assert_eq!(FeatureId::from_number(0x00), None);
        assert_eq!(supported_dword(FeatureId::KeyValueConfiguration), 0b110);
        assert_eq!(supported_dword(FeatureId::WriteCache), 0b000);
    }
}
