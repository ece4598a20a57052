//! Memory of a device: buffers in one piece or several, and the state of the pool that they come from.
//!
//! Input: lengths and addresses. Output: addresses, statistics by tier, limits of the tiers. Invariant: all memory comes
//! from the device's pool, in the tier of its length.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::device::{DEVICES, DeviceHandle};
use crate::device_segment::TierLimits;
use crate::ffi::{OutPointer, check_pointer, run_call};
use crate::segments::MemorySegment;
use crate::statistics::{PoolTotals, write_prefix};
use headwater::dma::pool::PoolError;
use headwater::dma::pool::calibration::{ChoiceOrigin, TierChoice};
use headwater::{Buffer, IoError};
use std::ffi::c_void;
use std::ptr;

/// Maximum number of pieces of a transfer that is copied.
const PIECES_MAX: u32 = 256;

/// The limits of the tiers were measured on this machine.
pub const HW_TIERS_CALIBRATED: u32 = 0;
/// The limits are those of section 4.1 of the uDMA paper: to 4 KiB, and from 4 MiB.
pub const HW_TIERS_PAPER_4_1: u32 = 1;
/// The limits are those of section 5.2 of the uDMA paper: to 4 KiB, and above 128 KiB.
pub const HW_TIERS_PAPER_5_2: u32 = 2;
/// The limits were given as numbers.
pub const HW_TIERS_NUMBERS: u32 = 3;

/// The reason that a device's pool gave no memory.
#[derive(Debug)]
pub(crate) enum AllocationError {
    /// The handle names no device that this process can use.
    Device(CallError),
    /// The pool refused.
    Pool(IoError),
}

impl From<AllocationError> for CallError {
    fn from(error: AllocationError) -> Self {
        match error {
            AllocationError::Device(error) => error,
            AllocationError::Pool(error) => error.into(),
        }
    }
}

/// Allocates memory of the pool of a device, which is named by the number of its handle.
pub(crate) fn allocate_buffer(device: usize, bytes: usize) -> Result<Buffer, AllocationError> {
    let device: *const DeviceHandle = ptr::without_provenance(device);
    let buffer = DEVICES.with_waiting(device, |open| Ok(open.device.buffer(bytes)));
    buffer.map_err(AllocationError::Device)?.map_err(AllocationError::Pool)
}

/// Allocates memory of the pool of a device in one piece, or in several if no piece is long enough now.
pub(crate) fn allocate_pieces(device: usize, bytes: usize) -> Result<Vec<Buffer>, AllocationError> {
    match allocate_buffer(device, bytes) {
        Err(AllocationError::Pool(IoError::Pool(PoolError::WouldBlock { .. }))) => {
            let device: *const DeviceHandle = ptr::without_provenance(device);
            let pieces = DEVICES.with_waiting(device, |open| Ok(open.device.buffers(bytes, PIECES_MAX)));
            pieces.map_err(AllocationError::Device)?.map_err(AllocationError::Pool)
        }
        found => found.map(|buffer| vec![buffer]),
    }
}

/// Returns the HW_TIERS_ constant of the origin of a choice.
pub(crate) fn origin_number(origin: ChoiceOrigin) -> u32 {
    match origin {
        ChoiceOrigin::Calibration => HW_TIERS_CALIBRATED,
        ChoiceOrigin::Paper41 => HW_TIERS_PAPER_4_1,
        ChoiceOrigin::Paper52 => HW_TIERS_PAPER_5_2,
        ChoiceOrigin::Numbers => HW_TIERS_NUMBERS,
    }
}

impl TierLimits {
    pub(crate) fn of(choice: &TierChoice) -> Self {
        Self {
            small_max_bytes: choice.thresholds.small_max as u64,
            large_min_bytes: choice.thresholds.large_min as u64,
            import_min_bytes: choice.import_min.unwrap_or(0) as u64,
        }
    }
}

/// Allocates `bytes` bytes that the device can access, page-aligned, and writes their address to `out`. hw_put_buffer
/// releases them. Reads and writes use this memory, and any part of it, without a copy. Never waits:
/// HW_CODE_WOULD_BLOCK; hw_get_buffer_within waits.
///
/// The memory comes from the device's pool, by its length: a small buffer is a slot of blocks that stay pinned, a medium
/// one is memory of the pool's chunks, and a large one is pinned for itself, until it is released. hw_device_tiers returns
/// the limits, hw_device_statistics the numbers of buffers by tier.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_buffer(
    device: *mut DeviceHandle,
    bytes: usize,
    out: *mut *mut c_void,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        if bytes == 0 {
            return Err(PoolError::Zero.into());
        }
        DEVICES.with_waiting(device, |open| {
            let address = open.buffers.insert(open.device.buffer(bytes)?);
            out.write(ptr::with_exposed_provenance_mut(address));
            Ok(())
        })
    })
}

/// Allocates as hw_get_buffer, in up to `segments_max` pieces, in one if possible. Writes the pieces to `segments`, an
/// array of `segments_max`, and their number to `count`. On failure nothing is written. hw_preadv and hw_pwritev transfer
/// all pieces; hw_put_buffer releases each.
///
/// Each piece starts on a page, and all but the last are whole pages, so that one command of the device can name them.
///
/// # Safety
/// Pointers that are neither null nor misaligned are valid for writes: `segments` of `segments_max` elements, `count`
/// of one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_segments(
    device: *mut DeviceHandle,
    bytes: usize,
    segments: *mut MemorySegment,
    segments_max: u32,
    count: *mut u32,
) -> ResultCode {
    run_call(|| {
        check_pointer(segments, "segments")?;
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(count, "count") }?;
        if bytes == 0 {
            return Err(PoolError::Zero.into());
        }
        if segments_max == 0 {
            return Err(PoolError::NoSegments.into());
        }
        DEVICES.with_waiting(device, |open| {
            let mut written = 0;
            for buffer in open.device.buffers(bytes, segments_max)?.into_iter().take(segments_max as usize) {
                let bytes = buffer.bytes();
                let address = ptr::with_exposed_provenance_mut(open.buffers.insert(buffer));
                let element = segments.wrapping_add(written as usize);
                // SAFETY: not null and aligned, as checked, and below the number of elements that the caller promises.
                unsafe { element.write(MemorySegment { address, bytes }) };
                written += 1;
            }
            out.write(written);
            Ok(())
        })
    })
}

/// Releases a buffer, by the address that hw_get_buffer, hw_get_buffer_within, hw_buffer_request_wait or hw_get_segments
/// wrote, or that hw_import_buffer took. A command in flight keeps its memory until it completes; imported memory that one
/// uses is not released: HW_CODE_BUSY.
#[unsafe(no_mangle)]
pub extern "C" fn hw_put_buffer(device: *mut DeviceHandle, buffer: *mut c_void) -> ResultCode {
    run_call(|| DEVICES.with_waiting(device, |open| open.buffers.release(buffer.addr())))
}

/// Writes the statistics of the pool of a device to `out`. `out_bytes` is sizeof(hw_pool_totals).
///
/// Devices that need no registration (null:, model:, nvme-tcp:) and were opened without settings of a pool share one
/// pool of the process, so that its numbers are those of all of them.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for writes of `out_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_statistics(
    device: *mut DeviceHandle,
    out: *mut PoolTotals,
    out_bytes: usize,
) -> ResultCode {
    run_call(|| {
        DEVICES.with_waiting(device, |open| {
            let totals = PoolTotals::of(&open.device.pool().statistics());
            // SAFETY: the struct is made of `u64`; the rest is the caller's promise.
            unsafe { write_prefix(&totals, out, out_bytes) }
        })
    })
}

/// Writes the limits between the tiers of a device's pool to `out`, and to `origin`, unless that is null, where they come
/// from: one of the HW_TIERS_ constants.
///
/// # Safety
/// An `out`, and an `origin`, that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_tiers(
    device: *mut DeviceHandle,
    out: *mut TierLimits,
    origin: *mut u32,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let origin_out = match origin.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::at(origin, "origin") }?),
        };
        let choice = DEVICES.with_waiting(device, |open| Ok(open.device.pool().tier_choice()))?;
        out.write(TierLimits::of(&choice));
        if let Some(origin_out) = origin_out {
            origin_out.write(origin_number(choice.origin));
        }
        Ok(())
    })
}
