//! Errors of the CUDA driver, and of opening it.

use std::path::PathBuf;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} (error {code})")]
pub struct CudaFailure {
    /// The function.
    pub call: &'static str,
    /// The driver's number of the error.
    pub code: i32,
    /// The driver's name of the error.
    pub name: String,
}

/// The reason that no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenGpuError {
    /// The library of the driver cannot be opened.
    #[error("{} cannot be opened ({reason}): install the driver of the GPU, or use a machine that has one", path.display())]
    NoLibrary {
        /// The library.
        path: PathBuf,
        /// The loader's reason.
        reason: String,
    },
    /// The library lacks a function.
    #[error("{} has no function {symbol}: install a newer driver", path.display())]
    NoFunction {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The driver knows no GPU.
    #[error("the driver knows no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoGpu,
    /// There is no GPU of this number.
    #[error("there is no GPU {asked}: the driver knows {found}, which count from 0")]
    NoSuchGpu {
        /// The number that was asked for.
        asked: usize,
        /// The number of GPUs.
        found: usize,
    },
    /// The settings of an engine are impossible.
    #[error("{field} = {found} is not between {least} and {most}: choose a number in this range")]
    Setting {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: usize,
        /// The least value.
        least: usize,
        /// The largest value.
        most: usize,
    },
    /// The system has no thread.
    #[error("the system started no thread for registrations ({0}); check the limit of processes (ulimit -u)")]
    Thread(String),
    /// A call of the driver failed.
    #[error("{0}; check `nvidia-smi`, and the memory that the GPU has left")]
    Driver(#[from] CudaFailure),
}
