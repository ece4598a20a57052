//! The limits of the NVMe/TCP front end.

use headwater_host::clock::Nanos;

/// Maximum connections at a time; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Maximum controllers of all hosts, discovery controllers included; a further Connect fails with Controller Busy.
pub const CONTROLLERS_MAX: usize = 64;
/// Maximum entries of a queue.
pub const QUEUE_ENTRIES_MAX: u16 = 256;
/// Maximum I/O queues of a controller.
pub const IO_QUEUES_MAX: u16 = 16;
/// Maximum bytes of one connection on their way to a host: reads in flight and unsent responses. A command above the
/// limit waits in its slot; a single larger read runs alone.
pub const READ_BYTES_MAX: usize = 4 << 20;
/// Unsent bytes of one connection at which reading from it pauses.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Bytes of one `recv`.
pub const SCRATCH_BYTES: usize = 128 << 10;
/// Bytes of one `recv` on a connection whose next data the device receives itself: enough for the headers between its parts, and
/// for a few short commands.
pub const PART_HEADER_BYTES: usize = 4 << 10;
/// Maximum bytes read from one connection in one turn, so that a busy host does not starve other hosts.
pub const TURN_BYTES_MAX: usize = 512 << 10;
/// Maximum connections accepted in one turn.
pub const TURN_ACCEPTS_MAX: usize = 64;
/// Maximum kernel events handled in one turn.
pub const TURN_EVENTS_MAX: usize = 256;
/// Maximum device commands of this front end in flight: half of the device's limit, so that other front ends have room.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Maximum pieces of one vectored write.
pub const PIECES_MAX: usize = 128;
/// Time limit from accept to a successful Connect.
pub const CONNECT_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Time limit for sending the remaining output of a closing connection.
pub const CLOSE_TIMEOUT: Nanos = Nanos::from_millis(2_000);

const _: () = assert!(PART_HEADER_BYTES <= SCRATCH_BYTES);
