//! Tests of the room that a connection makes for long arguments.

use super::*;
use crate::resp::parser::{AuthState, ParserLimits};
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

fn parse(connection: &mut RespConnection) -> Bytes {
    let mut batch = CommandBatch::default();
    let parsed = connection.parser.parse(&mut connection.input, &RULES, &mut batch);
    assert_eq!(parsed.error, None);
    connection.input.split_to(parsed.consumed).freeze()
}

#[test]
fn long_argument_is_received_into_one_buffer_of_its_length() {
    let (mut connection, mut client) = connection();
    let mut scratch = vec![0; READ_BYTES];
    let value = vec![b'v'; 1_000_000];
    let header = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n";
    client.write_all(header).unwrap();
    assert_eq!(connection.read(&mut scratch), Some(header.len()));
    assert_eq!(parse(&mut connection), b""[..]);
    let needed = header.len() + value.len() + 2;
    assert_eq!(connection.missing_room(), needed - connection.input.capacity());
    let mut place = None;
    for piece in value.chunks(100_000) {
        client.write_all(piece).unwrap();
        assert_eq!(connection.read(&mut scratch), Some(piece.len()));
        assert_eq!(connection.input.capacity(), needed + HEADER_READ_BYTES);
        let start = connection.input.as_ptr();
        assert_eq!(*place.get_or_insert(start), start, "the argument was moved");
        assert_eq!(parse(&mut connection), b""[..]);
    }
    // What follows the argument has room behind it.
    client.write_all(b"\r\n*1\r\n$4\r\nPING\r\n").unwrap();
    let mut chunk = Bytes::new();
    while chunk.is_empty() {
        connection.read(&mut scratch).unwrap();
        chunk = parse(&mut connection);
    }
    assert!(chunk[header.len()..header.len() + value.len()] == value[..]);
    assert_eq!(place, Some(chunk.as_ptr()));
}

#[test]
fn arguments_of_a_long_command_are_not_copied_for_each_of_them() {
    let (mut connection, mut client) = connection();
    let mut scratch = vec![0; READ_BYTES];
    let argument = [&b"$100000\r\n"[..], &[b'v'; 100_000], b"\r\n"].concat();
    client.write_all(b"*200\r\n").unwrap();
    let (mut moves, mut capacity) = (0, 0);
    for _ in 0..200 {
        client.write_all(&argument).unwrap();
        while connection.read(&mut scratch).is_some() {
            let _ = parse(&mut connection);
            moves += u32::from(connection.input.capacity() > capacity);
            capacity = capacity.max(connection.input.capacity());
        }
    }
    assert!(connection.input.is_empty(), "the command is not complete");
    assert!(moves < 20, "the arguments were moved {moves} times");
}
