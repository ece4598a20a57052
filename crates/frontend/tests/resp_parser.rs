//! Property tests of the RESP parser, with encoded commands and with random bytes.

use headwater_frontend::resp::parser::{AuthState, CommandBatch, ParserLimits, RespParser};
use proptest::prelude::*;

const RULES: ParserLimits =
    ParserLimits { bulk_bytes_max: 1 << 20, commands_max: 4, auth: AuthState::Authenticated };

type Commands = Vec<Vec<Vec<u8>>>;

/// Feeds a stream in pieces that end at the offsets `cuts`, and returns every command and the first error.
fn feed(stream: &[u8], cuts: &[usize]) -> (Commands, Option<String>) {
    let mut parser = RespParser::default();
    let mut batch = CommandBatch::default();
    let mut input = Vec::new();
    let mut commands = Commands::new();
    let mut at = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        let cut = cut.clamp(at, stream.len());
        input.extend_from_slice(&stream[at..cut]);
        at = cut;
        loop {
            let parsed = parser.parse(&mut input, &RULES, &mut batch);
            for index in 0..batch.len() {
                commands.push(batch.command(index).iter().map(|span| input[span.range()].to_vec()).collect());
            }
            input.drain(..parsed.consumed);
            batch.clear();
            if let Some(error) = parsed.error {
                return (commands, Some(error.to_string()));
            }
            if parsed.consumed == 0 {
                break;
            }
        }
    }
    (commands, None)
}

fn encode(commands: &Commands) -> Vec<u8> {
    let mut stream = Vec::new();
    for command in commands {
        stream.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for argument in command {
            stream.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            stream.extend_from_slice(argument);
            stream.extend_from_slice(b"\r\n");
        }
    }
    stream
}

proptest! {
    #[test]
    fn any_split_of_a_stream_yields_the_same_commands(
        commands in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..7), 0..12),
        mut cuts in proptest::collection::vec(0_usize..3_000, 0..20),
    ) {
        cuts.sort_unstable();
        let stream = encode(&commands);
        let (found, error) = feed(&stream, &cuts);
        prop_assert_eq!(error, None);
        prop_assert_eq!(found, commands);
    }

    #[test]
    fn random_bytes_never_panic_and_parse_alike_under_any_split(
        stream in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'0'), Just(b'"'),
                Just(b'\''), Just(b'\\'), Just(b'x'), Just(b' '), any::<u8>()], 0..200),
        mut cuts in proptest::collection::vec(0_usize..200, 0..10),
    ) {
        cuts.sort_unstable();
        let whole = feed(&stream, &[]);
        let pieces = feed(&stream, &cuts);
        prop_assert_eq!(whole, pieces);
    }
}

#[test]
fn a_stream_fed_byte_by_byte_is_parsed() {
    let commands = vec![vec![b"SET".to_vec(), vec![0; 300], Vec::new()], vec![b"PING".to_vec()]];
    let stream = encode(&commands);
    let cuts: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(feed(&stream, &cuts), (commands, None));
}
