//! A macro for enums of one-byte numbers: opcodes, log pages, Identify views, features.
//!
//! Input: a list of names with their numbers.
//! Output: an enum, conversions between name and number in both directions, and the list itself.
//! Invariant: the table holds exactly what the controller implements; any other number converts to `None`.

/// Defines an enum of one-byte numbers that a specification assigns.
macro_rules! numbered {
    ($(#[$enum_doc:meta])* $enum_name:ident { $($(#[$doc:meta])* $name:ident = $number:literal,)* }) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $enum_name {
            $($(#[$doc])* $name = $number,)*
        }

        impl $enum_name {
            /// All values of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the value with this number, or `None` if the table has none.
            #[must_use]
            #[inline]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the number on the wire.
            #[must_use]
            #[inline]
            pub const fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

pub(super) use numbered;
