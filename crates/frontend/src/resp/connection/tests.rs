//! Tests of the room that a connection makes for long arguments.

use super::*;
use crate::resp::limits::{HEADER_READ_BYTES, READ_BYTES};
use crate::resp::parser::{AuthState, ParserLimits};
use crate::resp::receive_buffers::ReceiveBuffers;
use std::io::Write;
use std::os::unix::net::UnixStream;

const RULES: ParserLimits =
    ParserLimits { bulk_bytes_max: 1 << 20, commands_max: 64, auth: AuthState::Authenticated };

fn connection() -> (RespConnection, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let identity = ClientIdentity {
        id: 1,
        address: String::new(),
        local: String::new(),
        name: Vec::new(),
        library: Vec::new(),
        library_version: Vec::new(),
        created: Nanos::ZERO,
    };
    (RespConnection::new(ClientIndex(0), identity, ours.into()), theirs)
}

fn parse(connection: &mut RespConnection, buffers: &mut ReceiveBuffers) -> Bytes {
    let mut batch = CommandBatch::default();
    let parsed = connection.parser.parse(&mut connection.input, &RULES, &mut batch);
    assert_eq!(parsed.error, None);
    if parsed.consumed == 0 {
        return Bytes::new();
    }
    let chunk = connection.input.split_to(parsed.consumed).freeze();
    connection.leave_long_input(buffers);
    chunk
}

#[test]
fn long_argument_is_received_into_one_buffer_of_its_length() {
    let (mut connection, mut client) = connection();
    let mut scratch = vec![0; READ_BYTES];
    let mut buffers = ReceiveBuffers::default();
    let value = vec![b'v'; 1_000_000];
    let header = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n";
    client.write_all(header).unwrap();
    assert_eq!(connection.read(&mut scratch, &mut buffers), Some(header.len()));
    assert_eq!(parse(&mut connection, &mut buffers), b""[..]);
    let needed = header.len() + value.len() + 2;
    assert_eq!(connection.missing_room(), needed - connection.input.capacity());
    let mut place = None;
    for piece in value.chunks(100_000) {
        client.write_all(piece).unwrap();
        assert_eq!(connection.read(&mut scratch, &mut buffers), Some(piece.len()));
        assert_eq!(connection.input.capacity(), needed + HEADER_READ_BYTES);
        let start = connection.input.as_ptr();
        assert_eq!(*place.get_or_insert(start), start, "the argument was moved");
        assert_eq!(parse(&mut connection, &mut buffers), b""[..]);
    }
    // What follows the argument has room behind it.
    client.write_all(b"\r\n*1\r\n$4\r\nPING\r\n").unwrap();
    let mut chunk = Bytes::new();
    while chunk.is_empty() {
        connection.read(&mut scratch, &mut buffers).unwrap();
        chunk = parse(&mut connection, &mut buffers);
    }
    assert!(chunk[header.len()..header.len() + value.len()] == value[..]);
    assert_eq!(place, Some(chunk.as_ptr()));
}

#[test]
fn arguments_of_a_long_command_are_not_copied_for_each_of_them() {
    let (mut connection, mut client) = connection();
    let mut scratch = vec![0; READ_BYTES];
    let mut buffers = ReceiveBuffers::default();
    let argument = [&b"$100000\r\n"[..], &[b'v'; 100_000], b"\r\n"].concat();
    client.write_all(b"*200\r\n").unwrap();
    let (mut moves, mut capacity) = (0, 0);
    for _ in 0..200 {
        client.write_all(&argument).unwrap();
        while connection.read(&mut scratch, &mut buffers).is_some() {
            let _ = parse(&mut connection, &mut buffers);
            moves += u32::from(connection.input.capacity() > capacity);
            capacity = capacity.max(connection.input.capacity());
        }
    }
    assert!(connection.input.is_empty(), "the command is not complete");
    assert!(moves < 20, "the arguments were moved {moves} times");
}

/// Repeats what broke: a client that sent a long value and then nothing kept the buffer of the value, which no limit
/// counted: forty idle clients of 16 MiB values held 660 MB.
#[test]
fn idle_connection_holds_no_buffer_of_a_long_value_and_the_next_client_receives_into_it() {
    let mut scratch = vec![0; READ_BYTES];
    let mut buffers = ReceiveBuffers::default();
    let command =
        |byte: u8| [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n"[..], &[byte; 100_000], b"\r\n"].concat();
    let mut places = Vec::new();
    let mut clients = Vec::new();
    for byte in 0..4 {
        let (mut connection, mut client) = connection();
        client.write_all(&command(byte)).unwrap();
        client.write_all(b"*1\r\n").unwrap();
        let mut chunk = Bytes::new();
        while chunk.is_empty() {
            connection.read(&mut scratch, &mut buffers).unwrap();
            chunk = parse(&mut connection, &mut buffers);
        }
        assert!(chunk == command(byte)[..]);
        places.push(chunk.as_ptr());
        // What followed the command is still there, in memory of its own.
        while connection.input.len() < 4 {
            connection.read(&mut scratch, &mut buffers).unwrap();
        }
        assert_eq!(connection.input[..], *b"*1\r\n");
        assert!(connection.held_bytes() < READ_BYTES, "an idle client holds {}", connection.held_bytes());
        clients.push((connection, client));
    }
    assert!(places.iter().all(|place| *place == places[0]), "each value had a new buffer: {places:?}");
}
