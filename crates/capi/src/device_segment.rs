//! Data for programming a device: the device address of a buffer, and the tier limits.
//!
//! Input: addresses and handles. Output: numbers. Invariant: these calls lend no memory: as long as a device works on a
//! buffer, the program neither accesses nor frees it.

use crate::code::ResultCode;
use crate::ffi::{OutPointer, run_call};
use crate::pool_handles::{self, PoolHandle};
use headwater_dma::pool::PoolError;
use headwater_host::reservation::AdoptError;
use std::ffi::c_void;

/// `iova` is valid: the device has its own addresses.
pub const HW_DEVICE_IOVA: u32 = 1;
/// `slot` and `slot_offset` are valid: a ring addresses the memory by the number of a registered range.
pub const HW_DEVICE_SLOT: u32 = 2;

/// A part of a buffer, as a device addresses it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSegment {
    /// Start address in this process.
    pub address: *mut c_void,
    /// Length in bytes: up to the end of the buffer's last page.
    pub bytes: usize,
    /// The address that the device uses, if `known` has HW_DEVICE_IOVA; else 0. Without it a device that can reach the
    /// memory uses `address`.
    pub iova: u64,
    /// Bytes from the start of the registered range `slot`, if `known` has HW_DEVICE_SLOT; else 0.
    pub slot_offset: u64,
    /// The number of the registered range, if `known` has HW_DEVICE_SLOT; else 0.
    pub slot: u32,
    /// HW_DEVICE_IOVA, HW_DEVICE_SLOT, both or 0, depending on how the pool pins.
    pub known: u32,
}

/// The limits between small, medium and large requests.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Longest request that gets a slot of blocks that stay pinned.
    pub small_max_bytes: u64,
    /// Shortest request that is pinned separately.
    pub large_min_bytes: u64,
    /// Shortest request for which the program's own memory is pinned in place and not copied; 0 for never.
    pub import_min_bytes: u64,
}

/// Writes to `out` how a device addresses the bytes from `address` to the end of the buffer that contains it. Each
/// buffer is contiguous for the device, too; call it for each piece of memory in several pieces. HW_CODE_FOREIGN if no
/// buffer of the pool contains the address.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_device_segment(
    pool: *mut PoolHandle,
    address: *const c_void,
    out: *mut DeviceSegment,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        let found = open_pool.pool.segment(address.cast()).ok_or(PoolError::Adopt(AdoptError::Outside))?;
        let (slot, slot_offset) = found.slot.unwrap_or((0, 0));
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        out.write(DeviceSegment {
            address: address.cast_mut(),
            bytes: found.bytes,
            iova: found.iova.unwrap_or(0),
            slot_offset: slot_offset as u64,
            slot,
            known: flag(found.iova.is_some(), HW_DEVICE_IOVA) | flag(found.slot.is_some(), HW_DEVICE_SLOT),
        });
        Ok(())
    })
}

/// Writes the limits between the tiers that the pool uses to `out`: those of its preset, else those of HEADWATER_TIERS,
/// else those of this machine, which hw_pool_open measured for a pool with a static tier. Without a static tier
/// (static_bytes 0) small requests are served as medium ones.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_tiers(pool: *mut PoolHandle, out: *mut TierLimits) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        out.write(TierLimits::of(&open_pool.pool.tier_choice()));
        Ok(())
    })
}
