//! The driver, and the GPUs that it knows.
//!
//! Input: the path of its library. Output: GPUs with names, places and nodes. Invariant: nothing is allocated on a GPU; that is
//! done by registrations and engines.

use super::gpu_error::{CudaFailure, OpenGpuError};
use super::library::{CudaFunctions, load};
use crate::numa::NodeId;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The room for a name.
const NAME_BYTES: usize = 256;
/// The room for an address on the bus, as "0000:3B:00.0".
const BUS_ID_BYTES: usize = 32;
/// The folder of the devices on the bus.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number, from 0 on.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// Its address on the bus; empty if the driver does not say it.
    pub bus_id: String,
    /// Its NUMA node, if it is known.
    pub node: Option<NodeId>,
    /// The driver's number of it.
    pub(super) device: c_int,
}

/// The driver of the GPUs of this machine.
pub struct GpuDriver {
    pub(super) functions: CudaFunctions,
    version: c_int,
    gpus: Vec<GpuInfo>,
}

impl GpuDriver {
    /// Opens the driver's library and asks it for the GPUs. Not yet run on a GPU.
    ///
    /// # Errors
    /// [`OpenGpuError`] names the cause and the remedy.
    pub fn open(library: &Path) -> Result<Arc<Self>, OpenGpuError> {
        let functions = load(library)?;
        // SAFETY: the function takes a number, which must be 0.
        functions.check("cuInit", unsafe { (functions.init)(0) })?;
        let mut version = 0;
        // SAFETY: bounds and lifetime: the driver writes one number to a place of this function.
        functions.check("cuDriverGetVersion", unsafe { (functions.driver_get_version)(&raw mut version) })?;
        let mut count = 0;
        // SAFETY: as above.
        functions.check("cuDeviceGetCount", unsafe { (functions.device_get_count)(&raw mut count) })?;
        let gpus = (0..count).map(|number| info_of(&functions, number)).collect::<Result<Vec<_>, _>>()?;
        if gpus.is_empty() {
            return Err(OpenGpuError::NoGpu);
        }
        Ok(Arc::new(Self { functions, version, gpus }))
    }

    /// Returns the GPUs, in the order of their numbers: at least one.
    #[must_use]
    pub fn gpus(&self) -> &[GpuInfo] {
        &self.gpus
    }

    /// Returns a GPU by its number.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn gpu(&self, number: usize) -> Result<&GpuInfo, OpenGpuError> {
        self.gpus.get(number).ok_or(OpenGpuError::NoSuchGpu { asked: number, found: self.gpus.len() })
    }

    /// Returns the version of CUDA that the driver supports: major and minor.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        (self.version / 1_000, self.version % 1_000 / 10)
    }
}

impl fmt::Debug for GpuDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuDriver")
            .field("version", &self.version)
            .field("gpus", &self.gpus)
            .finish_non_exhaustive()
    }
}

fn info_of(functions: &CudaFunctions, ordinal: c_int) -> Result<GpuInfo, CudaFailure> {
    let mut device = 0;
    // SAFETY: bounds and lifetime: the driver writes one number to a place of this function.
    functions.check("cuDeviceGet", unsafe { (functions.device_get)(&raw mut device, ordinal) })?;
    let mut name = [0; NAME_BYTES];
    // SAFETY: bounds and lifetime: the driver writes at most so many characters to an array of this function.
    let named = unsafe { (functions.device_get_name)(name.as_mut_ptr(), room(&name), device) };
    functions.check("cuDeviceGetName", named)?;
    let mut bus_id = [0; BUS_ID_BYTES];
    // SAFETY: as above.
    let found = unsafe { (functions.device_get_pci_bus_id)(bus_id.as_mut_ptr(), room(&bus_id), device) };
    let bus_id =
        if functions.check("cuDeviceGetPCIBusId", found).is_ok() { text(&bus_id) } else { String::new() };
    let node = node_of(Path::new(PCI_DEVICES), &bus_id);
    // The driver counts from 0.
    let number = usize::try_from(ordinal).unwrap_or(0);
    Ok(GpuInfo { number, name: text(&name), bus_id, node, device })
}

fn room(characters: &[c_char]) -> c_int {
    c_int::try_from(characters.len()).unwrap_or(0)
}

/// Returns the characters before the first zero.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|character| character.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the NUMA node of a device on the bus, as the kernel names it.
fn node_of(devices: &Path, bus_id: &str) -> Option<NodeId> {
    let is_address = !bus_id.is_empty()
        && bus_id.chars().all(|character| character.is_ascii_hexdigit() || matches!(character, ':' | '.'));
    let folder = is_address.then(|| devices.join(bus_id.to_ascii_lowercase()))?;
    let node = std::fs::read_to_string(folder.join("numa_node")).ok()?;
    // The kernel writes -1 where it knows none.
    node.trim().parse().ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_that_is_missing_or_is_no_driver_is_an_error_that_says_what_to_do() {
        let missing = GpuDriver::open(Path::new("/nowhere/libcuda.so.1")).unwrap_err();
        assert!(matches!(missing, OpenGpuError::NoLibrary { .. }), "{missing}");
        assert!(missing.to_string().contains("install the driver"), "{missing}");
        let other = GpuDriver::open(Path::new("libc.so.6")).unwrap_err();
        assert!(matches!(other, OpenGpuError::NoFunction { symbol: "cuInit", .. }), "{other}");
        use std::os::unix::ffi::OsStrExt as _;
        let impossible = GpuDriver::open(Path::new(std::ffi::OsStr::from_bytes(b"a\0b"))).unwrap_err();
        assert!(impossible.to_string().contains("byte of value 0"), "{impossible}");
    }

    #[test]
    fn node_of_a_gpu_is_that_of_its_place_on_the_bus() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("0000:3b:00.0");
        std::fs::create_dir(&folder).unwrap();
        for (text, expected) in [("1\n", Some(NodeId(1))), ("-1\n", None), ("", None)] {
            std::fs::write(folder.join("numa_node"), text).unwrap();
            assert_eq!(node_of(root.path(), "0000:3B:00.0"), expected, "{text:?}");
        }
        for bus_id in ["", "0000:3C:00.0", "../0000:3b:00.0"] {
            assert_eq!(node_of(root.path(), bus_id), None, "{bus_id:?}");
        }
    }
}
