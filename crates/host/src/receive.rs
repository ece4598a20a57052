//! Receives from a socket into memory that has not been written yet.
//!
//! Input: a connected socket, a buffer with room behind its bytes. Output: the buffer, longer by what arrived.
//! Invariant: only bytes that the kernel wrote become part of the buffer.

use bytes::BytesMut;
use rustix::net::{RecvFlags, recv};
use std::os::fd::BorrowedFd;

/// Appends what the socket has, at most `bytes_max` bytes, to a buffer, which does not grow beyond its capacity.
/// Returns the number of bytes, which is 0 at the end of the stream.
///
/// # Errors
/// The kernel received nothing: no byte is there, or the connection failed.
///
/// # Panics
/// The buffer has no room, or `bytes_max` is 0: the result would look like the end of the stream.
pub fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut BytesMut,
    bytes_max: usize,
) -> rustix::io::Result<usize> {
    let room = buffer.spare_capacity_mut();
    let asked = room.len().min(bytes_max);
    assert!(asked > 0, "bytes are to be received into a buffer without room");
    let ((received, _), _) = recv(socket, &mut room[..asked], RecvFlags::empty())?;
    let count = received.len();
    let length = buffer.len() + count;
    // SAFETY: the kernel has written `count` bytes directly behind the bytes of the buffer, within its capacity: `recv`
    // returns them as initialized, and `room` began there.
    unsafe { buffer.set_len(length) };
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_are_appended_within_the_limit_and_the_capacity() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let sent: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
        theirs.write_all(&sent).unwrap();
        let mut buffer = BytesMut::with_capacity(70_000);
        let capacity = buffer.capacity();
        while buffer.len() < capacity {
            let (before, max) = (buffer.len(), random.usize(1..20_000));
            let count = receive_into(ours.as_fd(), &mut buffer, max).unwrap();
            assert!((1..=max).contains(&count), "seed {seed}: {count} bytes of {max}");
            assert_eq!(buffer.len(), before + count, "seed {seed}");
        }
        assert_eq!(buffer.capacity(), capacity, "seed {seed}: the buffer grew");
        assert!(buffer[..] == sent[..capacity], "seed {seed}: other bytes than those that were sent");
        buffer.clear();
        while buffer.len() < sent.len() - capacity {
            receive_into(ours.as_fd(), &mut buffer, usize::MAX).unwrap();
        }
        assert!(buffer[..] == sent[capacity..], "seed {seed}: other bytes than those that were sent");
        let nothing = receive_into(ours.as_fd(), &mut buffer, 1);
        assert_eq!(nothing, Err(rustix::io::Errno::AGAIN));
        drop(theirs);
        assert_eq!(receive_into(ours.as_fd(), &mut buffer, 1), Ok(0));
    }
}
