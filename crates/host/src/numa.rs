//! Which memory node this thread is on, and which node memory comes from.
//!
//! In: node numbers, and ranges of addresses. Out: the kernel's policy for them, or its refusal, and what a node has left.
//! Invariant: none of this changes what memory holds; a policy that the kernel refuses is told and never passed over.
//!
//! [`Topology`](crate::topology::Topology) says which nodes there are and how far apart.

use crate::pinning::Memory;
use crate::reservation::PAGE_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fmt;
use std::fs;
use std::io;
use std::ptr;

/// Most node numbers that a policy can name.
pub const NODES_MAX: u32 = 1_024;

/// Of `linux/mempolicy.h`: answer with a node, the one of the page at the address.
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

/// Why memory was not bound to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// There is no such node, or this process may not use its memory.
    #[error("memory node {} does not exist or is not allowed here: see cpuset.mems of the control group", node.0)]
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
    #[error("this kernel knows no memory nodes: use one arena")]
    Unsupported,
    /// Something else.
    #[error("memory cannot be bound to node {} (error {errno})", node.0)]
    Refused {
        /// The node.
        node: NodeId,
        /// The kernel's number.
        errno: i32,
    },
}

/// The node of the processor that this thread is on now. `None` if the kernel does not say.
#[must_use]
pub fn current_node() -> Option<NodeId> {
    let mut node: libc::c_uint = 0;
    let nothing = ptr::null_mut::<libc::c_uint>();
    // SAFETY: bounds, alignment and lifetime: the kernel writes one number into a variable of its type on this stack, and
    // takes null for what is not asked for. Aliasing: nobody else has its address.
    let answer = unsafe { libc::syscall(libc::SYS_getcpu, nothing, &raw mut node, nothing) };
    (answer == 0).then_some(NodeId(node))
}

/// The processor that this thread is on now, without a system call where the C library knows a way. `None` if nobody says.
#[must_use]
#[inline]
pub fn current_cpu() -> Option<usize> {
    // SAFETY: the call takes nothing and returns a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Memory of a node that could be had now without taking any from programs, in bytes: what is free, and half of the pages
/// of files, which the kernel gives up when asked. Pages set aside as huge ones are none of it. `None` if the kernel does
/// not say.
#[must_use]
pub fn available_bytes(node: NodeId) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    available_of(&text)
}

/// `Node 0 MemFree:  1024 kB`, a line a number.
fn available_of(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find(|line| line.split_whitespace().nth(2) == Some(name))?;
        line.split_whitespace().nth(3)?.parse().ok()
    };
    let free = kibibytes("MemFree:")?;
    let files: u64 = ["Active(file):", "Inactive(file):"].into_iter().filter_map(kibibytes).sum();
    free.checked_add(files / 2)?.checked_mul(1_024)
}

/// Whether memory can be bound to a node at all, tried with one page of addresses.
///
/// # Errors
/// As for [`bind`].
pub fn try_bind(node: NodeId) -> Result<(), BindError> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a private mapping at an address of the kernel's choice touches no memory that exists.
    let made = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, ProtFlags::empty(), flags) };
    let made = made.map_err(|errno| BindError::Refused { node, errno: errno.raw_os_error() })?;
    let bound = bind_range(made.addr(), PAGE_BYTES, node);
    // SAFETY: the mapping made above, whose address nobody else has. A failure leaks a page of addresses.
    let _ = unsafe { munmap(made, PAGE_BYTES) };
    bound
}

/// Lets memory come from one node and no other. Pages that are there already stay where they are, so bind before pages
/// are committed; a node that has no memory left then gives an error or wakes the kernel's killer, as any memory does.
///
/// # Errors
/// [`BindError`] says what to do about it.
pub fn bind(memory: Memory, node: NodeId) -> Result<(), BindError> {
    bind_range(memory.address(), memory.bytes(), node)
}

pub(crate) fn bind_range(address: usize, bytes: usize, node: NodeId) -> Result<(), BindError> {
    let mut mask = [0_u64; MASK_WORDS];
    let word = mask.get_mut((node.0 / WORD_BITS) as usize).ok_or(BindError::NoSuchNode { node })?;
    *word = 1 << (node.0 % WORD_BITS);
    // SAFETY: bounds, alignment and lifetime: the kernel reads as many bits of the mask as it has. Aliasing: it writes
    // nothing of ours, and a policy does not change what memory holds; any address is harmless.
    let answer = unsafe {
        // The kernel takes one bit fewer than it is told.
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

/// The node that the page at an address is on, which is brought in if it is not there. `None` if the kernel does not say.
#[must_use]
pub fn node_of(memory: Memory) -> Option<NodeId> {
    let mut node: libc::c_int = -1;
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    let nothing = ptr::null_mut::<libc::c_ulong>();
    // SAFETY: bounds, alignment and lifetime: the kernel writes one number into a variable of its type on this stack, and
    // takes null for the mask. Aliasing: nobody else has its address; the page's bytes are not changed.
    let answer = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, nothing, 0_u64, memory.address(), flags)
    };
    u32::try_from(node).ok().filter(|_| answer == 0).map(NodeId)
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a test that cannot run here says why")]
mod tests {
    use super::*;
    use crate::reservation::{Backing, PageRun, Reservation, Wish};

    #[test]
    fn a_thread_is_on_a_node_that_exists() {
        let Some(node) = current_node() else {
            return eprintln!("skipped: the kernel does not say which node a thread is on");
        };
        let nodes = crate::topology::Topology::read().nodes;
        assert!(nodes.is_empty() || nodes.iter().any(|known| known.number == node.0), "{node:?}");
    }

    #[test]
    fn what_a_node_has_left_is_what_is_free_and_half_of_its_files() {
        let text = "\nNode 1 MemTotal:  9000 kB\nNode 1 MemFree:  100 kB\nNode 1 Active(file): 20 kB\n\
                    Node 1 Inactive(file): 41 kB\nNode 1 Active(anon): 7 kB\n";
        assert_eq!(available_of(text), Some(130 << 10));
        assert_eq!(available_of("Node 1 MemFree: many kB"), None);
        assert_eq!(available_of(""), None);
        assert_eq!(available_bytes(NodeId(u32::MAX)), None);
    }

    #[test]
    fn binding_can_be_tried() {
        let node = current_node().unwrap_or(NodeId(0));
        match try_bind(node) {
            Err(error @ (BindError::NotPermitted { .. } | BindError::Unsupported)) => {
                eprintln!("skipped: {error}");
            }
            bound => bound.unwrap(),
        }
        assert!(try_bind(NodeId(NODES_MAX)).is_err());
    }

    #[test]
    fn pages_of_a_bound_reservation_come_from_its_node() {
        let mut reservation = Reservation::new(64 << 12).unwrap();
        let node = current_node().unwrap_or(NodeId(0));
        match reservation.bind(node) {
            Err(error @ (BindError::NotPermitted { .. } | BindError::Unsupported)) => {
                return eprintln!("skipped: {error}");
            }
            bound => bound.unwrap(),
        }
        let run = PageRun { first: 0, pages: 64 };
        reservation.commit(run, Wish::only(Backing::Small)).unwrap();
        let memory = reservation.memory(run).unwrap();
        assert_eq!(node_of(memory), Some(node));
        bind(memory, node).unwrap();
    }

    #[test]
    fn a_node_that_does_not_exist_is_told() {
        let mut reservation = Reservation::new(1).unwrap();
        for node in [NodeId(NODES_MAX - 1), NodeId(NODES_MAX), NodeId(u32::MAX)] {
            match reservation.bind(node) {
                Err(BindError::NoSuchNode { node: told }) => assert_eq!(told, node),
                Err(BindError::NotPermitted { .. } | BindError::Unsupported) => {
                    eprintln!("skipped: no policies here");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
