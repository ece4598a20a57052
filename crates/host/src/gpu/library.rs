//! The library of the CUDA driver, opened at run time.
//!
//! Input: a path. Output: its functions. Invariant: the library is never closed, so that its functions and the names that it
//! returns stay valid until the process ends; nothing of it is linked.
//!
//! # What is trusted
//! A library of this name has functions of these signatures: they are those of `cuda.h` since CUDA 11.0. A name with `_v2` is
//! the one that the header gives to programs without the suffix.

use super::gpu_error::{CudaFailure, OpenGpuError};
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

/// The name by which the loader finds the driver's library.
pub const LIBRARY_NAME: &str = "libcuda.so.1";
/// The variable that names another library than [`LIBRARY_NAME`], for tests.
pub const LIBRARY_VARIABLE: &str = "HEADWATER_LIBCUDA";

/// Returns the library that programs use: [`LIBRARY_NAME`], or the one that [`LIBRARY_VARIABLE`] names.
#[must_use]
pub fn library_path() -> PathBuf {
    std::env::var_os(LIBRARY_VARIABLE).map_or_else(|| LIBRARY_NAME.into(), PathBuf::from)
}

/// The code of success.
pub(super) const SUCCESS: c_int = 0;
/// The code of a query for something that has not ended.
pub(super) const NOT_READY: c_int = 600;

/// A number of the driver for a context, a stream or an event.
pub(super) type RawHandle = *mut c_void;
/// An address in the memory of a GPU.
pub(super) type GpuAddress = u64;

/// Declares the functions with their names in the library.
macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// The functions of the library.
        #[derive(Clone, Copy)]
        pub(super) struct CudaFunctions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl CudaFunctions {
            fn load(library: &OpenLibrary) -> Result<Self, OpenGpuError> {
                Ok(Self {
                    $($field: {
                        let found = library.symbol($name)?;
                        // SAFETY: bounds and alignment: a function of the library, not null. Lifetime: the library is never
                        // closed. Aliasing: not concerned. The signature is that of cuda.h, as this file says.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "cuInit" (c_uint);
    driver_get_version = "cuDriverGetVersion" (*mut c_int);
    device_get_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_get_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_get_pci_bus_id = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain" (*mut RawHandle, c_int);
    primary_ctx_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    ctx_create = "cuCtxCreate_v2" (*mut RawHandle, c_uint, c_int);
    ctx_destroy = "cuCtxDestroy_v2" (RawHandle);
    ctx_push_current = "cuCtxPushCurrent_v2" (RawHandle);
    ctx_pop_current = "cuCtxPopCurrent_v2" (*mut RawHandle);
    stream_create = "cuStreamCreate" (*mut RawHandle, c_uint);
    mem_alloc = "cuMemAlloc_v2" (*mut GpuAddress, usize);
    mem_host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    mem_host_unregister = "cuMemHostUnregister" (*mut c_void);
    memcpy_htod_async = "cuMemcpyHtoDAsync_v2" (GpuAddress, *const c_void, usize, RawHandle);
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, GpuAddress, usize, RawHandle);
    memset_d8_async = "cuMemsetD8Async" (GpuAddress, c_uchar, usize, RawHandle);
    event_create = "cuEventCreate" (*mut RawHandle, c_uint);
    event_record = "cuEventRecord" (RawHandle, RawHandle);
    event_query = "cuEventQuery" (RawHandle);
    get_error_name = "cuGetErrorName" (c_int, *mut *const c_char);
}

/// A library that is open for as long as the process.
struct OpenLibrary {
    handle: *mut c_void,
    path: PathBuf,
}

impl OpenLibrary {
    fn open(path: &Path) -> Result<Self, OpenGpuError> {
        let refused = |reason| OpenGpuError::NoLibrary { path: path.to_path_buf(), reason };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| refused("the path has a byte of value 0".into()))?;
        // SAFETY: bounds and lifetime: a terminated string that outlives the call. Opening runs the library's initialisers: the
        // operator of this machine installed it as the driver, or named it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refused(loader_error()));
        }
        Ok(Self { handle, path: path.to_path_buf() })
    }

    fn symbol(&self, symbol: &'static str) -> Result<*mut c_void, OpenGpuError> {
        let missing = || OpenGpuError::NoFunction { path: self.path.clone(), symbol };
        let name = CString::new(symbol).map_err(|_| missing())?;
        // SAFETY: bounds and lifetime: the library is open, and the name a terminated string that outlives the call.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if found.is_null() { Err(missing()) } else { Ok(found) }
    }
}

/// Returns the text of the loader's last error on this thread.
fn loader_error() -> String {
    // SAFETY: bounds and lifetime: null, or a terminated string that is valid until the next call of the loader by this thread;
    // it is copied at once.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Opens a library and finds every function.
pub(super) fn load(path: &Path) -> Result<CudaFunctions, OpenGpuError> {
    CudaFunctions::load(&OpenLibrary::open(path)?)
}

impl CudaFunctions {
    /// Returns the failure of a call, unless its code is that of success.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaFailure> {
        if code == SUCCESS { Ok(()) } else { Err(self.failure(call, code)) }
    }

    /// Returns the failure of a call.
    #[cold]
    pub(super) fn failure(&self, call: &'static str, code: c_int) -> CudaFailure {
        let mut name: *const c_char = ptr::null();
        // SAFETY: bounds and lifetime: the driver writes one pointer to a place of this function.
        let named = unsafe { (self.get_error_name)(code, &raw mut name) };
        let name = if named == SUCCESS && !name.is_null() {
            // SAFETY: bounds and lifetime: a terminated string of the library, which is never closed.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "an error without a name".into()
        };
        CudaFailure { call, code, name }
    }
}
