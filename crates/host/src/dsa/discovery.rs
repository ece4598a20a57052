//! The discovery of work queues that user space may use.
//!
//! Input: the folders in which the kernel's `idxd` driver lists its devices and their files. Output: the enabled user queues
//! with their limits, or the reason that there is none. Invariant: a queue whose files cannot be understood is skipped with a
//! reason, never used with a guess.
//!
//! Follows the kernel's `Documentation/ABI/stable/sysfs-driver-dma-idxd`.

use super::descriptor::DsaOpcode;
pub use super::opcode_set::DsaOpcodeSet;
use crate::numa::NodeId;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The commands by which an operator opens a shared work queue to users.
pub const SETUP_COMMANDS: &str = "accel-config config-engine dsa0/engine0.0 --group-id=0; accel-config config-wq \
     dsa0/wq0.0 --group-id=0 --mode=shared --size=16 --threshold=16 --type=user --driver-name=user --name=headwater \
     --priority=10; accel-config enable-device dsa0; accel-config enable-wq dsa0/wq0.0";

/// The folders of the `idxd` driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DsaRoots {
    /// The folder that has `dsaN` for each device.
    pub devices: PathBuf,
    /// The folder that has the file `wqN.M` for each user queue.
    pub files: PathBuf,
}

impl DsaRoots {
    /// Returns the folders below another root than `/`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { devices: root.join("sys/bus/dsa/devices"), files: root.join("dev/dsa") }
    }
}

impl Default for DsaRoots {
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

/// The number of a work queue: `wqN.M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkQueueId {
    /// The device, N.
    pub device: u32,
    /// The queue of the device, M.
    pub queue: u32,
}

impl fmt::Display for WorkQueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wq{}.{}", self.device, self.queue)
    }
}

/// The users of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueueMode {
    /// One process; it counts its descriptors itself, because the device drops one too many without an answer.
    Dedicated,
    /// Many processes; the device answers if it has no room.
    Shared,
}

impl WorkQueueMode {
    /// Returns the word of the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Shared => "shared",
        }
    }
}

/// An enabled user queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueueInfo {
    /// Its number.
    pub id: WorkQueueId,
    /// The name that its operator gave it.
    pub name: String,
    /// Its users.
    pub mode: WorkQueueMode,
    /// The descriptors that it holds.
    pub size: u32,
    /// Of a shared one, how many of them users may fill.
    pub threshold: u32,
    /// The most bytes of a descriptor.
    pub transfer_bytes_max: u32,
    /// The most descriptors of a batch; 1 if there are no batches.
    pub batch_max: u32,
    /// True if a descriptor may wait for a page.
    pub may_block_on_fault: bool,
    /// True if the device reads back what a descriptor wrote, where it asks for that.
    pub can_read_back: bool,
    /// The number of its file, behind that of the driver.
    pub file_minor: Option<u32>,
    /// The group of engines that serves it.
    pub group: Option<u32>,
    /// The memory node of the device.
    pub node: Option<NodeId>,
    /// The opcodes that the device knows and the queue permits.
    pub opcodes: DsaOpcodeSet,
    /// The opcodes that the device knows and the queue does not permit (`op_config`).
    pub forbidden: DsaOpcodeSet,
    /// The path of its file.
    pub file: PathBuf,
}

/// A queue that is there and cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedQueue {
    /// Its number.
    pub id: WorkQueueId,
    /// The reason, for an operator.
    pub reason: String,
}

/// The reason that there is no queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The kernel has no DSA bus.
    #[error(
        "{} does not exist: this machine has no DSA device, or its kernel has no idxd driver; load it with \
         `modprobe idxd`, or do without",
        path.display()
    )]
    NoBus {
        /// The folder of the bus.
        path: PathBuf,
    },
    /// The folder of the bus cannot be read.
    #[error("{} cannot be read ({kind}): check its permissions", path.display())]
    Unreadable {
        /// The folder of the bus.
        path: PathBuf,
        /// The kind of error.
        kind: io::ErrorKind,
    },
    /// No queue is enabled for users.
    #[error(
        "{} has no enabled work queue of type user{}; as root: {SETUP_COMMANDS}",
        path.display(),
        describe(skipped)
    )]
    NoUserQueue {
        /// The folder of the bus.
        path: PathBuf,
        /// Queues that cannot be used.
        skipped: Vec<SkippedQueue>,
    },
}

fn describe(skipped: &[SkippedQueue]) -> String {
    let reasons: Vec<String> =
        skipped.iter().map(|skipped| format!("{}: {}", skipped.id, skipped.reason)).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) }
}

/// Finds the enabled user queues, by number.
///
/// # Errors
/// [`DiscoveryError`] if there is none, with the reason and what to do.
pub fn discover(roots: &DsaRoots) -> Result<Vec<WorkQueueInfo>, DiscoveryError> {
    let path = &roots.devices;
    let entries = fs::read_dir(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DiscoveryError::NoBus { path: path.clone() },
        kind => DiscoveryError::Unreadable { path: path.clone(), kind },
    })?;
    let mut devices: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("dsa")?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    devices.sort();
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for (device, folder) in devices {
        for id in queues_of(device, &folder) {
            match read_queue(id, &folder, roots) {
                Ok(queue) => found.push(queue),
                Err(reason) => skipped.push(SkippedQueue { id, reason }),
            }
        }
    }
    if found.is_empty() {
        return Err(DiscoveryError::NoUserQueue { path: path.clone(), skipped });
    }
    Ok(found)
}

/// Returns the queues of a device, by number.
fn queues_of(device: u32, folder: &Path) -> Vec<WorkQueueId> {
    let prefix = format!("wq{device}.");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut queues: Vec<WorkQueueId> = entries
        .filter_map(|entry| {
            let queue = entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok()?;
            Some(WorkQueueId { device, queue })
        })
        .collect();
    queues.sort();
    queues
}

/// Reads the files of a queue; the error is the reason to skip it.
fn read_queue(id: WorkQueueId, device: &Path, roots: &DsaRoots) -> Result<WorkQueueInfo, String> {
    let folder = device.join(id.to_string());
    let text = |name: &str| fs::read_to_string(folder.join(name)).map(|text| text.trim().to_owned());
    let word = |name: &str| text(name).map_err(|error| format!("its file {name} cannot be read ({error})"));
    let number = |name: &str| -> Result<u64, String> {
        let found = word(name)?;
        found.parse().map_err(|_| format!("its file {name} has {found:?}, not a number"))
    };
    let device_word = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    let (state, kind) = (word("state")?, word("type")?);
    if kind != "user" {
        return Err(format!("its type is {kind}, not user"));
    }
    if state != "enabled" {
        return Err(format!("its state is {state}, not enabled"));
    }
    let mode = match word("mode")?.as_str() {
        "dedicated" => WorkQueueMode::Dedicated,
        "shared" => WorkQueueMode::Shared,
        other => return Err(format!("its mode {other:?} is not known")),
    };
    // Old kernels enable such a queue although the device does not translate addresses: it would take ours as those of the
    // bus.
    if mode == WorkQueueMode::Dedicated && device_word("pasid_enabled").trim() == "0" {
        return Err("its device does not translate addresses (pasid_enabled is 0): enable the IOMMU".into());
    }
    let narrow = |name: &str| -> Result<u32, String> {
        let found = number(name)?;
        u32::try_from(found).map_err(|_| format!("its file {name} has {found}, which is too much"))
    };
    let size = narrow("size")?;
    if size == 0 {
        return Err("its size is 0".into());
    }
    let transfer_bytes_max = number("max_transfer_size")?.clamp(0, u64::from(u32::MAX));
    let transfer_bytes_max = u32::try_from(transfer_bytes_max).unwrap_or(u32::MAX);
    if transfer_bytes_max == 0 {
        return Err("its max_transfer_size is 0".into());
    }
    let known = DsaOpcodeSet::parse(&device_word("op_cap")).ok_or("the device has no op_cap")?;
    let opcodes = permitted_opcodes(&folder, known)?;
    // The file is missing where the device has no batches, and the opcode where the kernel forbids them.
    let batch_max = narrow("max_batch_size").unwrap_or(1).max(1);
    Ok(WorkQueueInfo {
        id,
        name: text("name").unwrap_or_default(),
        mode,
        size,
        threshold: narrow("threshold").unwrap_or(size),
        transfer_bytes_max,
        batch_max: if opcodes.contains(DsaOpcode::Batch) { batch_max } else { 1 },
        may_block_on_fault: text("block_on_fault").is_ok_and(|found| found == "1"),
        can_read_back: can_read_back(&device_word("gen_cap")),
        file_minor: narrow("cdev_minor").ok(),
        group: narrow("group_id").ok(),
        // The kernel writes -1 for a machine without nodes.
        node: device_word("numa_node").trim().parse().ok().map(NodeId),
        opcodes,
        forbidden: DsaOpcodeSet(known.0 & !opcodes.0),
        file: roots.files.join(id.to_string()),
    })
}

/// Returns true if `gen_cap` of a device has the bit by which it supports the readback of a destination: bit 8 of GENCAP, as
/// `union gen_cap_reg` of the driver has it. A device whose file is missing does not.
fn can_read_back(gen_cap: &str) -> bool {
    let word = gen_cap.trim();
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).is_ok_and(|word| word & 1 << 8 != 0)
}

/// Returns the opcodes that a queue permits of those that its device knows. A queue without the file permits all of them: the
/// device cannot restrict its queues.
fn permitted_opcodes(folder: &Path, known: DsaOpcodeSet) -> Result<DsaOpcodeSet, String> {
    let text = match fs::read_to_string(folder.join("op_config")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(known),
        Err(error) => return Err(format!("its file op_config cannot be read ({error})")),
    };
    let permitted = DsaOpcodeSet::parse(&text)
        .ok_or_else(|| format!("its file op_config has {:?}, not a set of operations", text.trim()))?;
    let opcodes = DsaOpcodeSet(permitted.0 & known.0);
    if opcodes.opcodes().any(DsaOpcode::is_over_memory) {
        Ok(opcodes)
    } else {
        Err("its op_config permits no operation over memory".into())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_the_driver() {
        let roots = DsaRoots::default();
        assert_eq!((roots.devices, roots.files), ("/sys/bus/dsa/devices".into(), "/dev/dsa".into()));
    }

    /// Returns the folders of a made tree.
    fn roots(root: &Path) -> DsaRoots {
        DsaRoots { devices: root.join("sys"), files: root.join("dev") }
    }

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join("sys").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn put_queue(root: &Path, at: &str, changes: &[(&str, &str)]) {
        let files = [
            ("state", "enabled\n"),
            ("type", "user\n"),
            ("mode", "dedicated\n"),
            ("size", "16\n"),
            ("threshold", "0\n"),
            ("max_transfer_size", "2147483648\n"),
            ("max_batch_size", "1024\n"),
            ("block_on_fault", "0\n"),
            ("cdev_minor", "3\n"),
            ("group_id", "1\n"),
            ("name", "headwater\n"),
        ];
        for (name, text) in files.iter().chain(changes) {
            put(root, &format!("{at}/{name}"), text);
        }
    }

    #[test]
    fn enabled_user_queues_are_found_with_their_limits() {
        let root = tempfile::TempDir::new().unwrap();
        put(root.path(), "dsa2/op_cap", "0x1003f03ff 0x0 0x0 0x0 \n");
        put(root.path(), "dsa2/numa_node", "1\n");
        put(root.path(), "dsa2/gen_cap", "0x40915f0107\n");
        put_queue(root.path(), "dsa2/wq2.1", &[("mode", "shared\n"), ("threshold", "12\n")]);
        put_queue(root.path(), "dsa2/wq2.0", &[]);
        put(
            root.path(),
            "dsa0/op_cap",
            "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03fd\n",
        );
        put(root.path(), "dsa0/numa_node", "-1\n");
        put(root.path(), "dsa0/gen_cap", "0x40915f0007\n");
        put_queue(root.path(), "dsa0/wq0.3", &[("block_on_fault", "1\n")]);
        put_queue(root.path(), "dsa0/wq0.2", &[("state", "disabled\n")]);
        put_queue(root.path(), "iax1/wq1.0", &[]);
        let found = discover(&roots(root.path())).unwrap();
        let ids: Vec<String> = found.iter().map(|queue| queue.id.to_string()).collect();
        assert_eq!(ids, ["wq0.3", "wq2.0", "wq2.1"]);
        let [first, second, third] = &found[..] else { panic!("three queues") };
        assert_eq!((first.node, second.node), (None, Some(NodeId(1))));
        assert_eq!((first.batch_max, second.batch_max), (1, 1_024), "the first has no opcode of batches");
        assert!(first.may_block_on_fault && !second.may_block_on_fault);
        assert!(second.can_read_back && third.can_read_back && !first.can_read_back);
        assert_eq!((second.mode, third.mode), (WorkQueueMode::Dedicated, WorkQueueMode::Shared));
        assert_eq!((second.size, third.threshold, second.transfer_bytes_max), (16, 12, 1 << 31));
        assert_eq!((second.file_minor, second.group, second.name.as_str()), (Some(3), Some(1), "headwater"));
        assert_eq!(second.file, root.path().join("dev/wq2.0"));
        for opcode in DsaOpcode::ALL {
            assert!(second.opcodes.contains(opcode), "{opcode:?}");
            assert_eq!(first.opcodes.contains(opcode), opcode != DsaOpcode::Batch, "{opcode:?}");
        }
    }

    #[test]
    fn a_queue_permits_what_its_op_config_and_its_device_have_in_common() {
        use DsaOpcode::{
            Batch, CacheFlush, Compare, CopyCrc, CrcGeneration, Drain, Dualcast, Fill, MemoryMove, NoOp,
        };
        let root = tempfile::TempDir::new().unwrap();
        let roots = roots(root.path());
        let zeroes = "00000000,00000000,00000000,00000000,00000000,00000000";
        // The device has no dualcast, which bit 9 is.
        put(root.path(), "dsa0/op_cap", &format!("{zeroes},00000001,003f01ff\n"));
        put_queue(root.path(), "dsa0/wq0.0", &[]);
        let all = [NoOp, Batch, Drain, MemoryMove, Fill, Compare, CrcGeneration, CopyCrc, CacheFlush];
        let cases: [(String, &[DsaOpcode]); 7] = [
            (format!("{zeroes},00000001,003f03ff\n"), &all),
            (format!("{zeroes},00000000,0000001c\n"), &[Drain, MemoryMove, Fill]),
            (format!("{zeroes},00000001,00020208\n"), &[MemoryMove, CopyCrc, CacheFlush]),
            // Operations that neither the device nor this driver has.
            (format!("ffffffff,{zeroes},ffc00208\n"), &[MemoryMove]),
            ("8\n".to_owned(), &[MemoryMove]),
            ("0x3a 0x0 0x0 0x0 \n".to_owned(), &[Batch, MemoryMove, Fill, Compare]),
            ("00000001,00000000".to_owned(), &[CacheFlush]),
        ];
        for (text, permitted) in &cases {
            put(root.path(), "dsa0/wq0.0/op_config", text);
            let queue = discover(&roots).unwrap().remove(0);
            let of = |set: DsaOpcodeSet| set.opcodes().collect::<Vec<_>>();
            assert_eq!(of(queue.opcodes), *permitted, "{text}");
            let rest: Vec<DsaOpcode> = all.into_iter().filter(|opcode| !permitted.contains(opcode)).collect();
            assert_eq!(of(queue.forbidden), rest, "{text}");
            assert_eq!(queue.batch_max > 1, permitted.contains(&Batch), "{text}");
            assert!(!queue.opcodes.contains(Dualcast), "{text}");
        }
        let refusals = [
            ("", "not a set of operations"),
            ("all\n", "\"all\", not a set"),
            ("00000000,0000001g", "not a set"),
            ("x,00000000,00000008", "not a set"),
            ("00000000,100000008", "not a set"),
            ("00000000,00000007", "permits no operation over memory"),
            ("00000000,00000200", "permits no operation over memory"),
        ];
        for (text, reason) in refusals {
            put(root.path(), "dsa0/wq0.0/op_config", text);
            let error = discover(&roots).unwrap_err().to_string();
            assert!(error.contains("wq0.0") && error.contains(reason), "{text:?}: {error}");
        }
        // A folder in place of the file is an error that says so.
        fs::remove_file(root.path().join("sys/dsa0/wq0.0/op_config")).unwrap();
        assert_eq!(discover(&roots).unwrap()[0].forbidden, DsaOpcodeSet::default());
        fs::create_dir(root.path().join("sys/dsa0/wq0.0/op_config")).unwrap();
        let error = discover(&roots).unwrap_err().to_string();
        assert!(error.contains("op_config cannot be read"), "{error}");
    }

    #[test]
    fn a_missing_bus_and_unusable_queues_are_errors_that_say_what_to_do() {
        let root = tempfile::TempDir::new().unwrap();
        let roots = roots(root.path());
        let error = discover(&roots).unwrap_err();
        assert_eq!(error, DiscoveryError::NoBus { path: roots.devices.clone() });
        assert!(error.to_string().contains("modprobe idxd"), "{error}");
        fs::create_dir(&roots.devices).unwrap();
        assert!(discover(&roots).unwrap_err().to_string().contains("accel-config enable-wq"));
        let cases: [(&str, &str, &str); 8] = [
            ("state", "disabled\n", "its state is disabled"),
            ("type", "kernel\n", "its type is kernel"),
            ("mode", "other\n", "its mode \"other\""),
            ("size", "0\n", "its size is 0"),
            ("size", "many\n", "\"many\", not a number"),
            ("size", "99999999999\n", "too much"),
            ("max_transfer_size", "0\n", "max_transfer_size is 0"),
            ("max_transfer_size", "-1\n", "not a number"),
        ];
        put(root.path(), "dsa0/op_cap", "0x1003f03ff 0x0 0x0 0x0\n");
        for (file, text, reason) in cases {
            put_queue(root.path(), "dsa0/wq0.0", &[(file, text)]);
            let error = discover(&roots).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert!(error.to_string().contains("wq0.0"), "{error}");
        }
        put_queue(root.path(), "dsa0/wq0.0", &[]);
        put(root.path(), "dsa0/pasid_enabled", "0\n");
        assert!(discover(&roots).unwrap_err().to_string().contains("does not translate addresses"));
        put(root.path(), "dsa0/pasid_enabled", "1\n");
        assert_eq!(discover(&roots).unwrap().len(), 1);
        fs::remove_file(root.path().join("sys/dsa0/op_cap")).unwrap();
        assert!(discover(&roots).unwrap_err().to_string().contains("op_cap"));
    }
}
