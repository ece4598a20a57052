//! Devices: opened by URL, described, closed.
//!
//! Input: URLs, settings of the pool of memory. Output: handles, facts. Invariant: a closed device stays alive as long
//! as its queues.

use crate::call_error::CallError;
use crate::client_buffers::ClientBuffers;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, check_pointer, run_call};
use crate::handle_table::HandleTable;
use crate::pool_settings::HwPoolSettings;
use headwater::{ClientNamespace, Device};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// Maximum number of devices that C can have open at a time.
const DEVICES_MAX: usize = 256;

/// A device, seen through one of its namespaces.
#[derive(Debug)]
pub struct DeviceHandle {
    _opaque: (),
}

/// The properties of a device and its namespace.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceInfo {
    /// Bytes of this struct. Set it to sizeof(hw_facts).
    pub struct_bytes: usize,
    /// Number of blocks of the namespace that this client may access.
    pub blocks: u64,
    /// Bytes of a block; 0 for a key-value namespace.
    pub block_bytes: u32,
    /// Number of the namespace.
    pub namespace_id: u32,
    /// 1 if this client may write, else 0.
    pub writable: u32,
    /// Always 0.
    pub reserved: u32,
}

/// The object behind a device handle.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    pub(crate) device: Device,
    pub(crate) buffers: Arc<ClientBuffers>,
}

pub(crate) static DEVICES: HandleTable<OpenDevice, DEVICES_MAX> = HandleTable::new("device");

/// Returns the number of blocks that a client may access.
pub(crate) fn accessible_blocks(facts: &ClientNamespace) -> u64 {
    facts.blocks.map_or(facts.size, |(first, end)| end.saturating_sub(first))
}

/// Opens the device that a URL names, and writes its handle to `out`: "null:1G", "mem:64MiB", "file:DIR",
/// "attach:PATH", "nvme-tcp://HOST:PORT/NQN", "io-uring:PATH", "nvme-ng:/dev/ng0n1", "vfio:0000:00:04.0", with "?ns=N"
/// for a namespace other than 1, and with settings of its pool of memory ("?pool-cap=1GiB&pool-tiers=paper-5.2"). A child
/// of this process cannot use it. hw_close closes it.
///
/// # Safety
/// A `url` that is not null is a string. An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_open(url: *const c_char, out: *mut *mut DeviceHandle) -> ResultCode {
    // SAFETY: the caller's promise; null settings are allowed.
    unsafe { hw_open_with(url, std::ptr::null(), out) }
}

/// Opens a device as hw_open, with settings of its pool of memory: m, M, t, the limits of the tiers, the static tier and
/// the memory node. A setting that is not named is taken from the URL, if that names it. Null `settings` name none.
/// Settings with which no pool can be opened: HW_CODE_CONFIG, or HW_CODE_REFUSED for a memory node that does not exist.
///
/// # Safety
/// A `url` that is not null is a string. A `settings` that is not null was filled by hw_pool_settings_init, its `tiers`
/// null or a string. An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_open_with(
    url: *const c_char,
    settings: *const HwPoolSettings,
    out: *mut *mut DeviceHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        check_pointer(url, "url")?;
        // SAFETY: not null, so a terminated string by the caller's promise; the reference does not outlive this call.
        let url = unsafe { CStr::from_ptr(url) };
        let url = url.to_str().map_err(|_| CallError::UrlNotUtf8)?;
        // SAFETY: the caller's promise.
        let settings = unsafe { HwPoolSettings::read(settings) }?;
        let device = Device::open_with(url, &settings)?;
        out.write(DEVICES.add(OpenDevice { device, buffers: Arc::default() })?);
        Ok(())
    })
}

/// Closes a device. Its queues and handles stay usable. Buffers that were not put back stay valid until the last of
/// these is destroyed, and are then released.
#[unsafe(no_mangle)]
pub extern "C" fn hw_close(device: *mut DeviceHandle) -> ResultCode {
    run_call(|| DEVICES.remove(device).map(drop))
}

/// Writes the properties of the device to `facts`.
///
/// # Safety
/// A `facts` that is neither null nor misaligned is valid for reads and writes, its struct_bytes set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_facts(device: *mut DeviceHandle, facts: *mut DeviceInfo) -> ResultCode {
    run_call(|| {
        check_pointer(facts, "facts")?;
        // SAFETY: not null and aligned, and valid for a read by the caller's promise; the length is the first field.
        let got = unsafe { facts.cast::<usize>().read() };
        if got != size_of::<DeviceInfo>() {
            return Err(CallError::StructLength { got, want: size_of::<DeviceInfo>() });
        }
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(facts, "facts") }?;
        DEVICES.with_waiting(device, |open| {
            let namespace = open.device.namespace();
            out.write(DeviceInfo {
                struct_bytes: got,
                blocks: if namespace.is_key_space() { 0 } else { accessible_blocks(namespace) },
                block_bytes: namespace.block_bytes,
                namespace_id: namespace.id,
                writable: namespace.writable.into(),
                reserved: 0,
            });
            Ok(())
        })
    })
}
