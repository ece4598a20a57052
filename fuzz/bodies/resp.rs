//! RESP: how a stream is cut into reads never changes what it says, and nothing a client sends is a panic.
//!
//! In: one byte that says how to cut, then the stream. The parser sees the stream whole and cut, and must find the same
//! commands and the same error both times.

use headwater_frontend::resp::parser::{Batch, Parser, ProtocolError, Rules, Standing};

type Found = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// One run.
pub(crate) fn body(bytes: &[u8]) {
    let Some((&how, stream)) = bytes.split_first() else {
        return;
    };
    let rules = Rules {
        bulk_bytes_max: 1 << 16,
        commands_max: 1 + usize::from(how >> 5),
        standing: if how & 0x10 == 0 { Standing::Authenticated } else { Standing::Unknown },
    };
    let whole = parse(stream, stream.len().max(1), &rules);
    let cut = parse(stream, 1 + usize::from(how & 0x0f), &rules);
    assert_eq!(whole, cut, "the cut changed the meaning");
    if let Some(error) = whole.1 {
        assert!(error.to_string().starts_with("Protocol error"));
    }
}

fn parse(stream: &[u8], read_bytes: usize, rules: &Rules) -> Found {
    let mut parser = Parser::default();
    let mut batch = Batch::default();
    let mut input = Vec::new();
    let mut commands = Vec::new();
    for read in stream.chunks(read_bytes) {
        input.extend_from_slice(read);
        loop {
            let parsed = parser.parse(&mut input, rules, &mut batch);
            assert!(parsed.consumed <= input.len(), "consumed what was not there");
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
