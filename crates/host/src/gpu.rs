//! The copy engines of GPUs, which move bytes between memories of the host. **Not yet run on a GPU.**
//!
//! Input: `libcuda.so.1`, which is opened at run time, and transfers over memory that a caller hands over. Output: the memory,
//! with the bytes moved. Invariant: a GPU has the address of memory only while a [`GpuEngine`] owns that memory; it returns
//! when the driver has said that the GPU is done with it, or when the context of the engine was destroyed.
//!
//! A copy from host to host that the driver is asked for is carried out by the CPU. So a [`GpuEngine`] makes two transfers of
//! it: from the host into a slot of GPU memory, and from there to the host, in order on one stream. Only memory that is
//! [registered](HostRegistrations) is moved: of other memory the driver makes copies of its own, and the caller waits.
//!
//! All tests ran on a library that stands for the driver: it copies by a thread, and injects faults.
//!
//! # What this does not do
//! It decides nothing: which work is worth a GPU, and what to do when one fails, belong to the caller. It launches no kernels
//! and needs none of the CUDA toolkit.

/// The label of everything that names a GPU.
pub const NOT_RUN_ON_GPU: &str = "not yet run on a GPU";

mod context;
mod driver;
mod engine;
mod gpu_error;
mod library;
mod registration;
mod slot_plan;

pub use driver::{GpuDriver, GpuInfo};
pub use engine::{
    EndedTransfers, GpuEngine, GpuEngineConfig, GpuTransfer, RefusedTransfers, TransferRefusal,
    TransferSource,
};
pub use gpu_error::{CudaFailure, OpenGpuError};
pub use library::{LIBRARY_NAME, LIBRARY_VARIABLE, library_path};
pub use registration::{HostRegistrations, REGISTERED_BYTES_MAX, RegistrationCounters, RegistrationLookup};
