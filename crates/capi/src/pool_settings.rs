//! The settings of a device's pool, as C writes them where a device is opened.
//!
//! Input: a struct that [`hw_pool_settings_init`] filled and C changed. Output: [`PoolSettings`]. Invariant: the first
//! field is the length of the struct in the caller's header, so that later versions can append fields.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::config::{bytes, parse_preset};
use crate::ffi::{read_sized, run_call, write_sized};
use headwater::PoolSettings;
use headwater::host::clock::Nanos;
use std::ffi::c_char;

/// The value of a setting that is not named: the device chooses.
pub const HW_UNSET: u64 = u64::MAX;
/// Memory from the node of the thread that allocates, or the closest one with room.
pub const HW_NODE_ANY: u32 = u32::MAX;

/// The settings of a device's pool of memory. Fill it with hw_pool_settings_init, then change fields. A field that is
/// left as it was takes the value of the URL, if that names it (pool-chunk= and so on), else the device chooses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HwPoolSettings {
    /// Bytes of this struct. hw_pool_settings_init sets it.
    pub struct_bytes: usize,
    /// m: bytes of a chunk, a power of two from 64 KiB to 1 GiB, which then does not adapt to the load. HW_UNSET: it
    /// adapts.
    pub chunk_bytes: u64,
    /// M, the cap: maximum bytes that are pinned at a time, over all tiers. A request beyond it waits, or fails.
    pub cap_bytes: u64,
    /// t: nanoseconds after which an empty chunk is unpinned.
    pub idle_ns: u64,
    /// Bytes of the blocks that stay pinned, for small requests; a multiple of 4,096, at most half of the cap. 0: small
    /// requests are served as medium ones.
    pub static_bytes: u64,
    /// The limits between small, medium and large requests, as in HEADWATER_TIERS: "calibrated", "paper-4.1",
    /// "paper-5.2", or "SMALL:LARGE" in bytes. Null takes those of the URL, else those of that variable, else those
    /// measured on this machine. The string stays the caller's; it is read only by hw_open_with.
    pub tiers: *const c_char,
    /// The memory node, by the kernel's number, or HW_NODE_ANY.
    pub node: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<HwPoolSettings>() == 56);

impl HwPoolSettings {
    const fn unset() -> Self {
        Self {
            struct_bytes: size_of::<Self>(),
            chunk_bytes: HW_UNSET,
            cap_bytes: HW_UNSET,
            idle_ns: HW_UNSET,
            static_bytes: HW_UNSET,
            tiers: std::ptr::null(),
            node: HW_NODE_ANY,
            reserved: 0,
        }
    }

    /// Reads the settings that C passed; null names none.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned points to a `usize`; if its value is the length of an
    /// [`HwPoolSettings`], the pointer points to an `HwPoolSettings`, whose `tiers` is null or points to a string.
    pub(crate) unsafe fn read(settings: *const Self) -> Result<PoolSettings, CallError> {
        if settings.is_null() {
            return Ok(PoolSettings::default());
        }
        // SAFETY: the caller's promise.
        let passed = unsafe { read_sized(settings, "settings") }?;
        if passed.reserved != 0 {
            let value = passed.reserved.into();
            return Err(CallError::InvalidValue { field: "reserved", value, choice: "0" });
        }
        let named = |field, value| match value {
            HW_UNSET => Ok(None),
            value => bytes(field, value).map(Some),
        };
        Ok(PoolSettings {
            chunk_bytes: named("chunk_bytes", passed.chunk_bytes)?,
            cap_bytes: named("cap_bytes", passed.cap_bytes)?,
            idle: (passed.idle_ns != HW_UNSET).then_some(Nanos(passed.idle_ns)),
            // SAFETY: the caller's promise about the string.
            tiers: unsafe { parse_preset(passed.tiers) }?,
            static_bytes: named("static_bytes", passed.static_bytes)?,
            node: (passed.node != HW_NODE_ANY).then_some(passed.node),
        })
    }
}

/// Writes settings of which none is named. `settings_bytes` is sizeof(hw_pool_settings).
///
/// # Safety
/// A `settings` that is neither null nor misaligned is valid for writes of `settings_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_settings_init(
    settings: *mut HwPoolSettings,
    settings_bytes: usize,
) -> ResultCode {
    // SAFETY: the caller's promise.
    run_call(|| unsafe { write_sized(settings, settings_bytes, "settings", HwPoolSettings::unset()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater::dma::pool::TierThresholds;

    fn read(settings: &HwPoolSettings) -> Result<PoolSettings, CallError> {
        // SAFETY: a whole struct, whose string is null or terminated.
        unsafe { HwPoolSettings::read(settings) }
    }

    #[test]
    fn unset_fields_name_nothing_and_changed_ones_are_read() {
        assert!(read(&HwPoolSettings::unset()).unwrap().is_default());
        // SAFETY: null is allowed.
        assert!(unsafe { HwPoolSettings::read(std::ptr::null()) }.unwrap().is_default());
        let named = HwPoolSettings {
            chunk_bytes: 1 << 20,
            cap_bytes: 8 << 20,
            idle_ns: 0,
            static_bytes: 0,
            tiers: c"paper-5.2".as_ptr(),
            node: 3,
            ..HwPoolSettings::unset()
        };
        let expected = PoolSettings {
            chunk_bytes: Some(1 << 20),
            cap_bytes: Some(8 << 20),
            idle: Some(Nanos::ZERO),
            tiers: Some(TierThresholds::PAPER_5_2.into()),
            static_bytes: Some(0),
            node: Some(3),
        };
        assert_eq!(read(&named).unwrap(), expected);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let unset = HwPoolSettings::unset();
        let refused = |settings: HwPoolSettings| read(&settings).unwrap_err();
        assert!(matches!(
            refused(HwPoolSettings { struct_bytes: 48, ..unset }),
            CallError::StructLength { got: 48, want: 56 }
        ));
        assert!(matches!(refused(HwPoolSettings { tiers: c"paper".as_ptr(), ..unset }), CallError::Preset));
        let reserved = refused(HwPoolSettings { reserved: 1, ..unset });
        assert!(matches!(reserved, CallError::InvalidValue { field: "reserved", .. }));
    }
}
