//! The version of the library.
//!
//! Output: a packed version. Invariant: it is the version of this crate, from which the macros of the header are
//! generated too.

/// Returns the number of a part of the version.
///
/// # Panics
/// At compile time, if the part does not fit 8 bits.
const fn part(text: &str) -> u32 {
    match u8::from_str_radix(text, 10) {
        Ok(number) => number as u32,
        Err(_) => panic!("a part of the version does not fit 8 bits"),
    }
}

const PACKED: u32 = part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
    | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
    | part(env!("CARGO_PKG_VERSION_PATCH"));

/// Returns the version of the library that runs, packed as HW_VERSION: `major << 16 | minor << 8 | patch`. A program
/// compares it with HW_VERSION, the version of the header that it was compiled with.
#[unsafe(no_mangle)]
pub extern "C" fn hw_version() -> u32 {
    PACKED
}
