//! The limits of the NVMe/TCP face. Everything has one, and it has a name.

use headwater_host::clock::Nanos;

/// Connections at a time; one more is closed as it comes.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Controllers that hosts have at a time, discovery controllers included; one more is told that it is busy.
pub const CONTROLLERS_MAX: usize = 64;
/// Most entries of a queue.
pub const QUEUE_ENTRIES_MAX: u16 = 256;
/// Most I/O queues of a controller.
pub const IO_QUEUES_MAX: u16 = 16;
/// Bytes of one connection on their way to a host: reads in the device and answers not sent. What does not fit waits in its
/// slot; a single larger read goes alone.
pub const READ_BYTES_MAX: usize = 4 << 20;
/// Bytes of one connection that its host has not taken, at which nothing more is read from it.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Bytes asked of the kernel in one read.
pub const SCRATCH_BYTES: usize = 128 << 10;
/// Bytes read from one connection in one turn, so that a loud host does not starve the others.
pub const TURN_BYTES_MAX: usize = 512 << 10;
/// Connections accepted in one turn.
pub const TURN_ACCEPTS_MAX: usize = 64;
/// Events taken from the kernel in one turn.
pub const TURN_EVENTS_MAX: usize = 256;
/// Device commands of this face in flight; half of what a device takes, so that other faces find room.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Pieces of one vectored write.
pub const PIECES_MAX: usize = 128;
/// How long a connection may take to become a queue.
pub const JOIN_WITHIN: Nanos = Nanos::from_millis(10_000);
/// How long a connection that is being closed may take to accept what it is owed.
pub const CLOSE_WITHIN: Nanos = Nanos::from_millis(2_000);
