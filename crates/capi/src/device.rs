//! Devices and their memory: opened by URL, asked what they are, closed.
//!
//! In: URLs, lengths, addresses. Out: handles, facts, addresses. Invariant: a device that was closed stays as long as its
//! queues do.

use crate::border::{Out, check, guarded};
use crate::buffers::Buffers;
use crate::code::Code;
use crate::fault::Fault;
use crate::table::Table;
use headwater::{Buffer, Device, IoError, NamespaceFacts};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

/// Most devices that C can have open at a time.
const DEVICES_MAX: usize = 256;

/// A device, seen through one of its namespaces.
#[derive(Debug)]
pub struct DeviceHandle {
    _opaque: (),
}

/// What a device is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Bytes of this struct. Set it to sizeof(hw_facts).
    pub struct_bytes: usize,
    /// Blocks of the namespace that this client may touch.
    pub blocks: u64,
    /// Bytes of a block; 0 for a namespace of keys.
    pub block_bytes: u32,
    /// Number of the namespace.
    pub namespace_id: u32,
    /// 1 if this client may change what it holds.
    pub writable: u32,
    /// Always 0.
    pub reserved: u32,
}

/// What stands behind a handle.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    pub(crate) device: Device,
    pub(crate) buffers: Arc<Buffers>,
}

pub(crate) static DEVICES: Table<OpenDevice, DEVICES_MAX> = Table::new("device");

/// The blocks that a client may touch: how many.
pub(crate) fn blocks_of(facts: &NamespaceFacts) -> u64 {
    facts.blocks.map_or(facts.size, |(first, end)| end.saturating_sub(first))
}

/// Memory of the pool of a device, by the number of its handle.
pub(crate) fn memory_of(device: usize, bytes: usize) -> Result<Result<Buffer, IoError>, Fault> {
    let device: *const DeviceHandle = ptr::without_provenance(device);
    DEVICES.with_waiting(device, |open| Ok(open.device.buffer(bytes)))
}

/// Opens the device that a URL names, and writes its handle to `out`: "null:1G", "mem:64MiB", "file:DIR", "attach:PATH",
/// "nvme-tcp://HOST:PORT/NQN", "io-uring:PATH", "nvme-ng:/dev/ng0n1", "vfio:0000:00:04.0", with "?ns=N" for a namespace other
/// than 1. A child of this process cannot use it.
///
/// # Safety
/// A `url` that is not null is a string. An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_open(url: *const c_char, out: *mut *mut DeviceHandle) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(out, "out") }?;
        check(url, "url")?;
        // SAFETY: not null, and so a string that ends, by the caller's promise, which is not kept beyond this call.
        let url = unsafe { CStr::from_ptr(url) };
        let url = url.to_str().map_err(|_| Fault::Url)?;
        let device = Device::open(url)?;
        out.write(DEVICES.add(OpenDevice { device, buffers: Arc::default() })?);
        Ok(())
    })
}

/// Closes a device. Its queues and handles stay usable; buffers that were not put back go with the device.
#[unsafe(no_mangle)]
pub extern "C" fn hw_close(device: *mut DeviceHandle) -> Code {
    guarded(|| DEVICES.remove(device).map(drop))
}

/// Writes what the device is.
///
/// # Safety
/// A `facts` that is neither null nor misaligned is valid for reads and writes, its struct_bytes set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_facts(device: *mut DeviceHandle, facts: *mut Facts) -> Code {
    guarded(|| {
        check(facts, "facts")?;
        // SAFETY: not null and aligned, and valid for a read by the caller's promise; the length is the first field.
        let got = unsafe { facts.cast::<usize>().read() };
        if got != size_of::<Facts>() {
            return Err(Fault::Length { got, want: size_of::<Facts>() });
        }
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(facts, "facts") }?;
        DEVICES.with_waiting(device, |open| {
            let namespace = open.device.namespace();
            out.write(Facts {
                struct_bytes: got,
                blocks: if namespace.is_key_space() { 0 } else { blocks_of(namespace) },
                block_bytes: namespace.block_bytes,
                namespace_id: namespace.id,
                writable: namespace.writable.into(),
                reserved: 0,
            });
            Ok(())
        })
    })
}

/// Writes the address of `bytes` bytes that the device can touch to `out`, on a page. It is given back by hw_put_buffer.
/// Reads and writes take it, and any part of it, without a copy.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_buffer(
    device: *mut DeviceHandle,
    bytes: usize,
    out: *mut *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(out, "out") }?;
        if bytes == 0 {
            return Err(headwater::dma::pool::PoolError::Zero.into());
        }
        DEVICES.with_waiting(device, |open| {
            let address = open.buffers.keep(open.device.buffer(bytes)?);
            out.write(ptr::with_exposed_provenance_mut(address));
            Ok(())
        })
    })
}

/// Gives a buffer back, by the address that hw_get_buffer gave. A command in flight keeps its memory until it is answered.
#[unsafe(no_mangle)]
pub extern "C" fn hw_put_buffer(device: *mut DeviceHandle, buffer: *mut c_void) -> Code {
    guarded(|| DEVICES.with_waiting(device, |open| open.buffers.give_up(buffer.addr())))
}
