//! Foreign memory and sockets: the kernel moves the bytes, so nobody else has to.
//!
//! In: ranges of regions, a socket. Out: as many bytes as the kernel took or gave at once. Invariant: as with every access
//! to foreign memory, no reference into it exists; the kernel gets addresses.

use super::{Foreign, OutOfRegion};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Most pieces that one call sends; those beyond wait for the next.
pub const PIECES_MAX: usize = 64;

/// Bytes to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Of our own memory.
    Ours(&'a [u8]),
    /// Of a region.
    Region {
        /// Which.
        memory: &'a Foreign,
        /// Where in it.
        offset: usize,
        /// How many.
        bytes: usize,
    },
}

impl Foreign {
    /// Receives at most `bytes` bytes of a stream socket straight into the region; 0 is the stream's end.
    ///
    /// # Errors
    /// What the kernel says, and [`io::ErrorKind::InvalidInput`] for a range outside the region.
    pub fn receive(&self, offset: usize, bytes: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let target = self.range(offset, bytes).map_err(invalid)?.cast::<c_void>();
        // SAFETY: bounds: `range` found `bytes` bytes behind `target` in the mapping. Alignment: the kernel needs none.
        // Lifetime: `self` keeps the mapping and the borrow keeps the descriptor for the call. Aliasing: no reference ever
        // points into the mapping; that others touch it meanwhile is expected of foreign memory.
        let received = unsafe { libc::recv(socket.as_raw_fd(), target, bytes, 0) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

/// Sends pieces one after the other in one call, as many bytes as the kernel takes; no signal is raised if the other side
/// is gone.
///
/// # Errors
/// What the kernel says, and [`io::ErrorKind::InvalidInput`] for a range outside its region.
pub fn send_pieces(socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut vector = [nothing; PIECES_MAX];
    let count = pieces.len().min(PIECES_MAX);
    for (entry, piece) in vector.iter_mut().zip(&pieces[..count]) {
        *entry = match *piece {
            Piece::Ours(bytes) => {
                libc::iovec { iov_base: bytes.as_ptr().cast::<c_void>().cast_mut(), iov_len: bytes.len() }
            }
            Piece::Region { memory, offset, bytes } => {
                let start = memory.range(offset, bytes).map_err(invalid)?;
                libc::iovec { iov_base: start.cast::<c_void>(), iov_len: bytes }
            }
        };
    }
    // SAFETY: bounds and alignment: an all-zero header is a valid one with no name, no vector and no control data.
    // Lifetime and aliasing: a plain value of ours.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = count;
    // SAFETY: bounds: the vector has `count` entries, each of a slice or of a range that `range` found. Alignment: the
    // vector's is its type's, bytes need none. Lifetime: slices and regions are borrowed by `pieces` for the call, the
    // vector lives on this stack. Aliasing: the kernel only reads what the entries point to, and others may write regions
    // meanwhile, which is expected of foreign memory.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn invalid(error: OutOfRegion) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_go_from_region_to_region_through_a_socket() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let region = Foreign::anonymous(8_192).unwrap();
        region.copy_out(100, b"of the region").unwrap();
        let pieces = [
            Piece::Ours(b"head "),
            Piece::Region { memory: &region, offset: 100, bytes: 13 },
            Piece::Ours(b" tail"),
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
    fn ranges_outside_the_region_never_reach_the_kernel() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let region = Foreign::anonymous(4_096).unwrap();
        let invalid = |result: io::Result<usize>| result.unwrap_err().kind() == io::ErrorKind::InvalidInput;
        assert!(invalid(region.receive(4_000, 97, ours.as_fd())));
        assert!(invalid(region.receive(usize::MAX, 2, ours.as_fd())));
        let piece = Piece::Region { memory: &region, offset: 4_096, bytes: 1 };
        assert!(invalid(send_pieces(ours.as_fd(), &[piece])));
    }
}
