//! Socket transfers to and from shared memory without a bounce buffer.
//!
//! Input: ranges of regions, a socket. Output: the number of bytes that the kernel sent or received at once. Invariant:
//! as with every access to shared memory, no reference into it exists; the kernel gets addresses.

use super::{OutOfRegion, SharedMemory};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Most pieces that one call sends; the caller sends further ones with the next call.
pub const SEND_PIECES_MAX: usize = 64;

/// A run of bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum SocketPiece<'a> {
    /// Memory of this process.
    Local(&'a [u8]),
    /// A range of a region.
    Shared {
        /// The region.
        memory: &'a SharedMemory,
        /// The first byte in the region.
        offset: usize,
        /// The length of the range.
        bytes: usize,
    },
}

impl SharedMemory {
    /// Receives at most `bytes` bytes of a stream socket straight into the region; 0 is the stream's end.
    ///
    /// # Errors
    /// The kernel's error, and [`io::ErrorKind::InvalidInput`] for a range outside the region.
    pub fn receive(&self, offset: usize, bytes: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let target = self.checked_address(offset, bytes).map_err(invalid_input)?.cast::<c_void>();
        // SAFETY: bounds: `checked_address` found `bytes` bytes from `target` on in the mapping. Alignment: the kernel
        // needs none. Lifetime: `self` keeps the mapping and the borrow keeps the descriptor for the call. Aliasing: no
        // reference ever points into the mapping; concurrent accesses are expected of shared memory.
        let received = unsafe { libc::recv(socket.as_raw_fd(), target, bytes, 0) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

/// Sends pieces in order in one call, as many bytes as the kernel takes; raises no signal if the other side is gone.
///
/// # Errors
/// The kernel's error, and [`io::ErrorKind::InvalidInput`] for a range outside its region.
pub fn send_pieces(socket: BorrowedFd<'_>, pieces: &[SocketPiece<'_>]) -> io::Result<usize> {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut vector = [nothing; SEND_PIECES_MAX];
    let count = pieces.len().min(SEND_PIECES_MAX);
    for (entry, piece) in vector.iter_mut().zip(&pieces[..count]) {
        *entry = match *piece {
            SocketPiece::Local(bytes) => {
                libc::iovec { iov_base: bytes.as_ptr().cast::<c_void>().cast_mut(), iov_len: bytes.len() }
            }
            SocketPiece::Shared { memory, offset, bytes } => {
                let start = memory.checked_address(offset, bytes).map_err(invalid_input)?;
                libc::iovec { iov_base: start.cast::<c_void>(), iov_len: bytes }
            }
        };
    }
    // SAFETY: bounds and alignment: an all-zero header is a valid one with no name, no vector and no control data.
    // Lifetime and aliasing: a plain value of ours.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = count;
    // SAFETY: bounds: the vector has `count` entries, each of a slice or of a range that `checked_address` found.
    // Alignment: the vector's is its type's, bytes need none. Lifetime: slices and regions are borrowed by `pieces` for
    // the call, the vector lives on this stack. Aliasing: the kernel only reads what the entries point to, and
    // concurrent writes to regions are expected of shared memory.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn invalid_input(error: OutOfRegion) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn socket_moves_bytes_directly_from_and_to_regions() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let region = SharedMemory::anonymous(8_192).unwrap();
        region.copy_out(100, b"of the region").unwrap();
        let pieces = [
            SocketPiece::Local(b"head "),
            SocketPiece::Shared { memory: &region, offset: 100, bytes: 13 },
            SocketPiece::Local(b" tail"),
        ];
        assert_eq!(send_pieces(ours.as_fd(), &pieces).unwrap(), 23);
        let mut all = [0; 23];
        theirs.read_exact(&mut all).unwrap();
        assert_eq!(&all, b"head of the region tail");
        theirs.write_all(b"back").unwrap();
        assert_eq!(region.receive(4_096, 100, ours.as_fd()).unwrap(), 4);
        let mut back = [0; 4];
        region.copy_in(4_096, &mut back).unwrap();
        assert_eq!(&back, b"back");
        drop(theirs);
        assert_eq!(region.receive(0, 100, ours.as_fd()).unwrap(), 0, "the end");
    }

    #[test]
    fn range_outside_region_never_reaches_the_kernel() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let region = SharedMemory::anonymous(4_096).unwrap();
        let invalid = |result: io::Result<usize>| result.unwrap_err().kind() == io::ErrorKind::InvalidInput;
        assert!(invalid(region.receive(4_000, 97, ours.as_fd())));
        assert!(invalid(region.receive(usize::MAX, 2, ours.as_fd())));
        let piece = SocketPiece::Shared { memory: &region, offset: 4_096, bytes: 1 };
        assert!(invalid(send_pieces(ours.as_fd(), &[piece])));
    }
}
