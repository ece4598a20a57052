//! What a device is told: where it finds a buffer, and which tier a request belongs to.
//!
//! In: addresses and handles. Out: numbers. Invariant: nothing is lent by this: as long as a device works on a buffer, the
//! program neither touches nor frees it.

use crate::border::{Out, guarded};
use crate::code::Code;
use crate::fault::Fault;
use crate::handles::{self, PoolHandle};
use headwater_dma::pool::PoolError;
use headwater_dma::pool::calibration::Choice;
use headwater_host::reservation::AdoptError;
use std::ffi::c_void;

/// The device has addresses of its own, and `iova` is one.
pub const HW_DEVICE_IOVA: u32 = 1;
/// A ring knows the memory by number, and `slot` is that.
pub const HW_DEVICE_SLOT: u32 = 2;

/// Where a device finds a part of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSegment {
    /// Where it starts in this process.
    pub address: *mut c_void,
    /// Its length: to the end of the buffer's last page.
    pub bytes: usize,
    /// The address by which the device knows it, if `known` has HW_DEVICE_IOVA; else 0. Without it a device that can be
    /// reached at all takes the address.
    pub iova: u64,
    /// Bytes from the start of the registered range of that number, if `known` has HW_DEVICE_SLOT; else 0.
    pub slot_offset: u64,
    /// The number of the range, if `known` has HW_DEVICE_SLOT; else 0.
    pub slot: u32,
    /// HW_DEVICE_IOVA and HW_DEVICE_SLOT, by how the pool pins.
    pub known: u32,
}

/// The borders between small, medium and large requests.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// Longest request that is worth copying to memory that stays pinned.
    pub small_max_bytes: u64,
    /// Shortest request that is pinned for itself.
    pub large_min_bytes: u64,
    /// From so many bytes on the program's own memory is pinned where it is and not copied; 0 is never.
    pub import_min_bytes: u64,
}

/// Where a device finds the bytes from `address` to the end of the buffer that it lies in, written to `out`. Each buffer is
/// one piece for the device, too; memory in several pieces is asked for piece by piece. HW_CODE_FOREIGN if the address lies
/// in no buffer of the pool.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_device_segment(
    pool: *mut PoolHandle,
    address: *const c_void,
    out: *mut DeviceSegment,
) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(out, "out") }?;
        let face = handles::find(pool)?.ours()?;
        let found = face.pool.segment(address.cast()).ok_or(PoolError::Adopt(AdoptError::Foreign))?;
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

/// The borders between the tiers, written to `out`: those of the pool's preset, else those that HEADWATER_TIERS names, else
/// what was measured on this machine, which takes up to 50 ms the first time. HW_CODE_CONFIG if that variable names none.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_tiers(pool: *mut PoolHandle, out: *mut Tiers) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(out, "out") }?;
        let face = handles::find(pool)?.ours()?;
        let choice = Choice::of(face.pool.config()).map_err(Fault::Borders)?;
        out.write(Tiers {
            small_max_bytes: choice.borders.small_max as u64,
            large_min_bytes: choice.borders.large_min as u64,
            import_min_bytes: choice.import_min.unwrap_or(0) as u64,
        });
        Ok(())
    })
}
