//! Scans for the devices of this machine and the URLs that open them.
//!
//! Input: sysfs, and the access rights in /dev. Output: [`ScannedDevice`] devices, sorted by URL. A sysfs file that cannot be
//! read leaves the description incomplete, but is not a failure. No device is opened.

use crate::config::ByteSize;
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// PCI class of NVMe controllers, without the programming interface.
const NVME_CLASS: &str = "0x0108";
/// Unit of the sizes of block devices in sysfs.
const SECTOR_BYTES: u64 = 512;

/// The folders to scan; tests use other ones than the default.
#[derive(Clone, Debug)]
pub struct ScanRoots {
    /// Mount point of sysfs.
    pub sys: PathBuf,
    /// Folder of device files.
    pub dev: PathBuf,
}

impl Default for ScanRoots {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// A device of this machine, opened through one URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScannedDevice {
    /// URL that opens the device.
    pub url: String,
    /// Description of the device.
    pub what: String,
    /// Size in bytes, if it is known without opening the device.
    pub bytes: Option<u64>,
    /// Reason why this user cannot open it, and the remedy.
    pub obstacle: Option<String>,
}

/// Returns all devices, sorted by URL.
#[must_use]
pub fn scan(roots: &ScanRoots) -> Vec<ScannedDevice> {
    let mut found = controllers(roots);
    found.extend(generic_namespaces(roots));
    found.extend(block_devices(roots));
    found.sort_by(|a, b| a.url.cmp(&b.url));
    found
}

/// Returns the NVMe controllers, for Headwater's own driver.
fn controllers(roots: &ScanRoots) -> Vec<ScannedDevice> {
    let folder = roots.sys.join("bus/pci/devices");
    names(&folder)
        .into_iter()
        .filter(|name| {
            read(&folder.join(name).join("class")).is_some_and(|class| class.starts_with(NVME_CLASS))
        })
        .map(|name| {
            let device = folder.join(&name);
            let driver = link_name(&device.join("driver"));
            let group = link_name(&device.join("iommu_group"));
            let what = match &driver {
                Some(driver) => format!("NVMe controller, bound to {driver}"),
                None => "NVMe controller, bound to no driver".to_owned(),
            };
            let obstacle = match (&group, driver.as_deref()) {
                (None, _) => Some(
                    "it is not behind an IOMMU: enable the IOMMU in the firmware and boot with intel_iommu=on (AMD \
                     enables it by default)"
                        .to_owned(),
                ),
                (Some(group), Some("vfio-pci")) => {
                    access_obstacle(&roots.dev.join("vfio").join(group), "as root, chown the group's file to your user")
                }
                (Some(_), _) => Some(format!(
                    "bind it to vfio-pci, which removes it from the kernel: echo vfio-pci > {0}/driver_override; \
                     echo {name} > {0}/driver/unbind; echo {name} > /sys/bus/pci/drivers_probe",
                    device.display()
                )),
            };
            ScannedDevice { url: format!("vfio:{name}"), what, bytes: None, obstacle }
        })
        .collect()
}

/// Returns the namespaces under the kernel's driver, for passthrough.
fn generic_namespaces(roots: &ScanRoots) -> Vec<ScannedDevice> {
    names(&roots.sys.join("class/nvme-generic"))
        .into_iter()
        .map(|name| {
            let path = roots.dev.join(&name);
            let obstacle = access_obstacle(&path, "give your user or group access to the device file");
            let what = "NVMe namespace under the kernel's driver".to_owned();
            let block = name.replacen("ng", "nvme", 1);
            ScannedDevice {
                url: format!("nvme-ng:{}", path.display()),
                what,
                bytes: size_of(roots, &block),
                obstacle,
            }
        })
        .collect()
}

/// Returns the block devices and partitions, for io_uring.
fn block_devices(roots: &ScanRoots) -> Vec<ScannedDevice> {
    let folder = roots.sys.join("class/block");
    names(&folder)
        .into_iter()
        .filter_map(|name| {
            let bytes = size_of(roots, &name).filter(|&bytes| bytes > 0)?;
            let path = roots.dev.join(&name);
            let partition = folder.join(&name).join("partition").exists();
            let what = if partition { "partition" } else { "block device" }.to_owned();
            let obstacle = access_obstacle(&path, "give your user or group access to the device file");
            Some(ScannedDevice {
                url: format!("io-uring:{}", path.display()),
                what,
                bytes: Some(bytes),
                obstacle,
            })
        })
        .collect()
}

fn size_of(roots: &ScanRoots, block: &str) -> Option<u64> {
    let sectors: u64 = read(&roots.sys.join("class/block").join(block).join("size"))?.parse().ok()?;
    sectors.checked_mul(SECTOR_BYTES)
}

fn access_obstacle(path: &Path, change: &str) -> Option<String> {
    let refused = access(path, Access::READ_OK | Access::WRITE_OK).err()?;
    Some(format!("{}: {refused}; {change}", path.display()))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn link_name(link: &Path) -> Option<String> {
    std::fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

impl fmt::Display for ScannedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<32} {}", self.url, self.what)?;
        if let Some(bytes) = self.bytes {
            write!(f, ", {}", ByteSize(bytes))?;
        }
        match &self.obstacle {
            Some(obstacle) => write!(f, "\n{:32} not usable now: {obstacle}", ""),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn every_url_of_a_device_is_listed_with_its_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let roots = ScanRoots { sys: folder.path().join("sys"), dev: folder.path().join("dev") };
        let pci = "bus/pci/devices";
        for (name, class) in
            [("0000:00:03.0", "0x020000"), ("0000:00:04.0", "0x010802"), ("0000:00:05.0", "0x010802")]
        {
            file(&roots.sys, &format!("{pci}/{name}/class"), &format!("{class}\n"));
        }
        let ours = roots.sys.join(pci).join("0000:00:05.0");
        symlink("../../../kernel/iommu_groups/7", ours.join("iommu_group")).unwrap();
        symlink("../../drivers/vfio-pci", ours.join("driver")).unwrap();
        file(&roots.dev, "vfio/7", "");
        file(&roots.sys, "class/nvme-generic/ng0n1/dev", "");
        file(&roots.sys, "class/block/nvme0n1/size", "2048\n");
        file(&roots.sys, "class/block/nvme0n1p1/size", "1024\n");
        file(&roots.sys, "class/block/nvme0n1p1/partition", "1\n");
        file(&roots.sys, "class/block/loop0/size", "0\n");
        file(&roots.dev, "nvme0n1", "");
        let found = scan(&roots);
        let seen: Vec<(String, Option<u64>, bool)> = found
            .iter()
            .map(|device| {
                let url = device.url.replace(&roots.dev.display().to_string(), "/dev");
                (url, device.bytes, device.obstacle.is_none())
            })
            .collect();
        let row = |url: &str, bytes, usable| (url.to_owned(), bytes, usable);
        assert_eq!(
            seen,
            [
                row("io-uring:/dev/nvme0n1", Some(1 << 20), true),
                row("io-uring:/dev/nvme0n1p1", Some(1 << 19), false),
                row("nvme-ng:/dev/ng0n1", Some(1 << 20), false),
                row("vfio:0000:00:04.0", None, false),
                row("vfio:0000:00:05.0", None, true),
            ]
        );
        assert!(found[3].obstacle.as_ref().unwrap().contains("IOMMU"));
        assert!(found[4].to_string().contains("vfio-pci"));
    }

    #[test]
    fn machine_without_devices_gives_an_empty_list() {
        let folder = tempfile::tempdir().unwrap();
        let roots = ScanRoots { sys: folder.path().into(), dev: folder.path().into() };
        assert_eq!(scan(&roots), []);
    }
}
