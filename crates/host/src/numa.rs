//! The memory node of a thread, and the node that memory is allocated from.
//!
//! Input: node numbers, and ranges of addresses. Output: the kernel's policy for them, or its refusal, and a node's
//! available memory. Invariant: none of this changes the contents of memory; a policy that the kernel refuses is
//! reported, never ignored.
//!
//! [`Topology`](crate::topology::Topology) lists the nodes and their distances.

use crate::pinning::MemoryRange;
use crate::reservation::PAGE_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fmt;
use std::fs;
use std::io;
use std::ptr;

/// Upper bound on the node numbers that a policy can name.
pub const NODES_MAX: u32 = 1_024;

/// Flags of `linux/mempolicy.h`: return a node, that of the page at the address.
const MPOL_F_NODE: libc::c_int = 1;
const MPOL_F_ADDR: libc::c_int = 2;

const WORD_BITS: u32 = u64::BITS;
const MASK_WORDS: usize = (NODES_MAX / WORD_BITS) as usize;

/// The kernel's number of a memory node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An error of binding memory to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The node does not exist, or this process may not use its memory.
    #[error("memory node {} does not exist or is not allowed: check cpuset.mems of the control group", node.0)]
    NoSuchNode {
        /// The node.
        node: NodeId,
    },
    /// A filter of system calls forbids it; containers often have one.
    #[error("binding memory to node {} is not permitted: allow mbind, or use one arena for all nodes", node.0)]
    NotPermitted {
        /// The node.
        node: NodeId,
    },
    /// The kernel was built without memory nodes.
    #[error("this kernel does not support memory nodes: use one arena")]
    Unsupported,
    /// Another error.
    #[error("memory cannot be bound to node {} (error {errno})", node.0)]
    Refused {
        /// The node.
        node: NodeId,
        /// The kernel's error number.
        errno: i32,
    },
}

/// Returns the processor that this thread is on now, without a system call where the C library can; `None` on failure.
#[must_use]
#[inline]
pub fn current_cpu() -> Option<usize> {
    // SAFETY: the call takes nothing and returns a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Returns the bytes of a node that could be allocated now without taking any from programs: free memory plus half of
/// the page cache, which the kernel reclaims on demand. Pages reserved as huge pages do not count. `None` if the kernel
/// does not report it.
#[must_use]
pub fn available_bytes(node: NodeId) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    parse_available_bytes(&text)
}

/// Parses lines of the form `Node 0 MemFree:  1024 kB`.
fn parse_available_bytes(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find(|line| line.split_whitespace().nth(2) == Some(name))?;
        line.split_whitespace().nth(3)?.parse().ok()
    };
    let free = kibibytes("MemFree:")?;
    let files: u64 = ["Active(file):", "Inactive(file):"].into_iter().filter_map(kibibytes).sum();
    free.checked_add(files / 2)?.checked_mul(1_024)
}

/// Tests with one page of addresses that memory can be bound to a node.
///
/// # Errors
/// As for [`bind`].
pub fn try_bind(node: NodeId) -> Result<(), BindError> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a private mapping at an address of the kernel's choice touches no memory that exists.
    let made = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, ProtFlags::empty(), flags) };
    let made = made.map_err(|errno| BindError::Refused { node, errno: errno.raw_os_error() })?;
    let bound = bind_range(made.addr(), PAGE_BYTES, node);
    // SAFETY: the mapping made above, whose address no other code has. A failure leaks a page of addresses.
    let _ = unsafe { munmap(made, PAGE_BYTES) };
    bound
}

/// Restricts memory to one node. Pages that are present already stay where they are, so bind before pages are
/// committed; when the node has no memory left, an allocation fails or starts the OOM killer, as any memory does.
///
/// # Errors
/// [`BindError`] names the cause and the remedy.
pub fn bind(memory: MemoryRange, node: NodeId) -> Result<(), BindError> {
    bind_range(memory.address(), memory.bytes(), node)
}

pub(crate) fn bind_range(address: usize, bytes: usize, node: NodeId) -> Result<(), BindError> {
    let mut mask = [0_u64; MASK_WORDS];
    let word = mask.get_mut((node.0 / WORD_BITS) as usize).ok_or(BindError::NoSuchNode { node })?;
    *word = 1 << (node.0 % WORD_BITS);
    // SAFETY: bounds, alignment and lifetime: the kernel reads as many bits of the mask as it has. Aliasing: it writes
    // nothing of ours, and a policy does not change what memory holds; any address is harmless.
    let answer = unsafe {
        // The kernel reads one bit fewer than this count.
        let bits = u64::from(NODES_MAX) + 1;
        libc::syscall(libc::SYS_mbind, address, bytes, libc::MPOL_BIND, mask.as_ptr(), bits, 0)
    };
    if answer == 0 {
        return Ok(());
    }
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Err(match errno {
        libc::EINVAL => BindError::NoSuchNode { node },
        libc::EPERM | libc::EACCES => BindError::NotPermitted { node },
        libc::ENOSYS => BindError::Unsupported,
        _ => BindError::Refused { node, errno },
    })
}

/// Returns the node of the page at an address, faulting the page in if it is not present; `None` if the kernel does not
/// report it.
#[must_use]
pub fn node_of(memory: MemoryRange) -> Option<NodeId> {
    let mut node: libc::c_int = -1;
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    let nothing = ptr::null_mut::<libc::c_ulong>();
    // SAFETY: bounds, alignment and lifetime: the kernel writes one number into a variable of its type on this stack,
    // and takes null for the mask. Aliasing: no other code has its address; the page's bytes are not changed.
    let answer = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, nothing, 0_u64, memory.address(), flags)
    };
    u32::try_from(node).ok().filter(|_| answer == 0).map(NodeId)
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
mod tests {
    use super::*;
    use crate::reservation::{Backing, BackingOrder, PageRun, Reservation};
    use crate::topology::Topology;

    fn node_with_memory() -> NodeId {
        Topology::read().nodes_with_memory().next().map_or(NodeId(0), |node| NodeId(node.number))
    }

    #[test]
    fn available_bytes_are_free_memory_plus_half_of_page_cache() {
        let text = "\nNode 1 MemTotal:  9000 kB\nNode 1 MemFree:  100 kB\nNode 1 Active(file): 20 kB\n\
                    Node 1 Inactive(file): 41 kB\nNode 1 Active(anon): 7 kB\n";
        assert_eq!(parse_available_bytes(text), Some(130 << 10));
        assert_eq!(parse_available_bytes("Node 1 MemFree: many kB"), None);
        assert_eq!(parse_available_bytes(""), None);
        assert_eq!(available_bytes(NodeId(u32::MAX)), None);
    }

    #[test]
    fn try_bind_succeeds_or_reports_unsupported() {
        let node = node_with_memory();
        match try_bind(node) {
            Err(error @ (BindError::NotPermitted { .. } | BindError::Unsupported)) => {
                eprintln!("skipped: {error}");
            }
            bound => bound.unwrap(),
        }
        assert!(try_bind(NodeId(NODES_MAX)).is_err());
    }

    #[test]
    fn pages_of_bound_reservation_come_from_its_node() {
        let mut reservation = Reservation::new(64 << 12).unwrap();
        let node = node_with_memory();
        match reservation.bind(node) {
            Err(error @ (BindError::NotPermitted { .. } | BindError::Unsupported)) => {
                return eprintln!("skipped: {error}");
            }
            bound => bound.unwrap(),
        }
        let run = PageRun { first: 0, pages: 64 };
        reservation.commit(run, BackingOrder::only(Backing::Small)).unwrap();
        let memory = reservation.memory(run).unwrap();
        assert_eq!(node_of(memory), Some(node));
        bind(memory, node).unwrap();
    }

    #[test]
    fn binding_to_missing_node_names_the_node() {
        let mut reservation = Reservation::new(1).unwrap();
        for node in [NodeId(NODES_MAX - 1), NodeId(NODES_MAX), NodeId(u32::MAX)] {
            match reservation.bind(node) {
                Err(BindError::NoSuchNode { node: missing }) => assert_eq!(missing, node),
                Err(BindError::NotPermitted { .. } | BindError::Unsupported) => {
                    eprintln!("skipped: no policies here");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
