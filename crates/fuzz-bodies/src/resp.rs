//! RESP: the way in which a stream is cut into reads never changes its commands, and no stream causes a panic.
//!
//! Input: one byte that selects the cut and the limits, then the stream. The parser receives the stream whole and cut,
//! and must find the same commands and the same error both times.

use headwater_frontend::resp::parser::{AuthState, CommandBatch, ParserLimits, ProtocolError, RespParser};

/// The commands of a stream, each a list of arguments, and the error that ended it.
type ParsedStream = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Parses a stream whole and cut into reads.
///
/// # Panics
/// If the cut changes the commands or the error.
pub fn body(bytes: &[u8]) {
    let Some((&mode, stream)) = bytes.split_first() else {
        return;
    };
    let rules = ParserLimits {
        bulk_bytes_max: 1 << 16,
        commands_max: 1 + usize::from(mode >> 5),
        auth: if mode & 0x10 == 0 { AuthState::Authenticated } else { AuthState::Unauthenticated },
    };
    let whole = parse(stream, stream.len().max(1), &rules);
    let cut = parse(stream, 1 + usize::from(mode & 0x0f), &rules);
    assert_eq!(whole, cut, "the cut changed the commands");
    if let Some(error) = whole.1 {
        assert!(error.to_string().starts_with("Protocol error"));
    }
}

fn parse(stream: &[u8], read_bytes: usize, rules: &ParserLimits) -> ParsedStream {
    let mut parser = RespParser::default();
    let mut batch = CommandBatch::default();
    let mut input = Vec::new();
    let mut commands = Vec::new();
    for read in stream.chunks(read_bytes) {
        input.extend_from_slice(read);
        loop {
            let parsed = parser.parse(&mut input, rules, &mut batch);
            assert!(parsed.consumed <= input.len(), "consumed more than the input");
            for index in 0..batch.len() {
                let arguments = batch.command(index).iter();
                commands.push(arguments.map(|span| input[span.range()].to_vec()).collect());
            }
            batch.clear();
            input.drain(..parsed.consumed);
            if parsed.error.is_some() {
                return (commands, parsed.error);
            }
            if parsed.consumed == 0 {
                break;
            }
        }
    }
    (commands, None)
}
