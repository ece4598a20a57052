//! Tables of numbers and names: opcodes, log pages, Identify views, features.
//!
//! In: a list of names with their numbers. Out: an enum, both ways between name and number, and the list itself. Invariant:
//! what is in the table is what the controller has; a number that is not there is answered, not guessed.

/// An enum of one-byte numbers that a specification gives out.
macro_rules! numbered {
    ($(#[$enum_doc:meta])* $enum_name:ident { $($(#[$doc:meta])* $name:ident = $number:literal,)* }) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $enum_name {
            $($(#[$doc])* $name = $number,)*
        }

        impl $enum_name {
            /// Everything in the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name of a number, if it has one here.
            #[must_use]
            #[inline]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            #[must_use]
            #[inline]
            pub const fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

pub(super) use numbered;
