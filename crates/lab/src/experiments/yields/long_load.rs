//! The long commands, and a thread that sends them.
//!
//! Input: the address of a node. Output: the number of long commands that were answered. Each load sends one batch,
//! reads all of its replies, and sends the next.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum time of one reply.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Bytes of the strings that LCS compares: 64 million cells.
const LCS_BYTES: u64 = 8_000;
/// Bytes of the large value.
const LARGE_BYTES: usize = 15_000_000;
/// Keys that KEYS and FLUSHDB find.
const CROWD_KEYS: usize = 200_000;
/// Clients that CLIENT LIST lists.
const CROWD_CLIENTS: usize = 9_900;
/// Pairs of the MSET.
const MSET_PAIRS: usize = 65_536;
/// Commands of one long pipeline.
const PIPELINE: usize = 20_000;

/// A long command.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongLoad {
    /// Its name in claims.
    pub(super) name: &'static str,
    /// The load in words.
    pub(super) summary: &'static str,
    /// Returns the bytes of one batch, and the number of its commands.
    batch: fn() -> (Vec<u8>, usize),
}

/// All long commands.
pub(super) const LONG_LOADS: &[LongLoad] = &[
    LongLoad {
        name: "lcs",
        summary: "LCS of two strings of 8,000 bytes",
        batch: || (encode(&[b"LCS", b"left", b"right"]), 1),
    },
    LongLoad {
        name: "keys",
        summary: "KEYS with a pattern that no key of 220,000 has",
        batch: || (encode(&[b"KEYS", b"?*none*of*them*"]), 1),
    },
    LongLoad {
        name: "pipeline",
        summary: "pipelines of 20,000 GET",
        batch: || (encode(&[b"GET", b"key:000000000001"]).repeat(PIPELINE), PIPELINE),
    },
    LongLoad {
        name: "dbsize",
        summary: "pipelines of 20,000 DBSIZE",
        batch: || (encode(&[b"DBSIZE"]).repeat(PIPELINE), PIPELINE),
    },
    LongLoad {
        name: "append",
        summary: "pipelines of 50 APPEND of 10 bytes to a value of 15 MB",
        batch: || (encode(&[b"APPEND", b"large", b"0123456789"]).repeat(50), 50),
    },
    LongLoad { name: "get", summary: "GET of a value of 15 MB", batch: || (encode(&[b"GET", b"large"]), 1) },
    LongLoad { name: "set", summary: "SET of a value of 15 MB", batch: store_large },
    LongLoad { name: "mset", summary: "MSET of 65,536 short values", batch: store_many },
    LongLoad {
        name: "client_list",
        summary: "CLIENT LIST of 9,900 clients",
        batch: || (encode(&[b"CLIENT", b"LIST"]), 1),
    },
    LongLoad { name: "flushdb", summary: "200,000 SET, then FLUSHDB", batch: flush },
    LongLoad { name: "exec", summary: "MULTI, 65,536 SET of short values, EXEC", batch: store_many_in_multi },
    LongLoad {
        name: "flushdb_in_multi",
        summary: "200,000 SET, then MULTI, FLUSHDB, SET, EXEC",
        batch: flush_in_multi,
    },
];

/// Stores what the long commands work on.
pub(super) fn prepare(address: SocketAddr) -> io::Result<()> {
    let mut peer = RespPeer::connect(address)?;
    let text =
        |first: u8| (0..LCS_BYTES).map(|at| b'a' + (first + at.to_le_bytes()[0]) % 7).collect::<Vec<u8>>();
    peer.call(&[b"SET", b"left", &text(0)])?;
    peer.call(&[b"SET", b"right", &text(3)])?;
    peer.call(&[b"SET", b"large", &vec![b'v'; LARGE_BYTES]])?;
    for first in (0..CROWD_KEYS).step_by(1_000) {
        let batch: Vec<u8> = (first..first + 1_000).flat_map(store_crowd).collect();
        peer.exchange(&batch, 1_000)?;
    }
    Ok(())
}

fn store_crowd(number: usize) -> Vec<u8> {
    encode(&[b"SET", format!("crowd:{number:0>8}").as_bytes(), b"v"])
}

fn store_large() -> (Vec<u8>, usize) {
    (encode(&[b"SET", b"stored", &vec![b'w'; LARGE_BYTES]]), 1)
}

/// Stores as many short values as one batch of the device holds.
fn store_many() -> (Vec<u8>, usize) {
    let pairs = (0..MSET_PAIRS).flat_map(|number| [format!("many:{number:0>8}"), String::from("v")]);
    let arguments: Vec<String> = std::iter::once(String::from("MSET")).chain(pairs).collect();
    let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
    (encode(&arguments), 1)
}

/// Opens the connections that CLIENT LIST lists, as many as this process may have.
pub(super) fn connect_crowd(address: SocketAddr) -> io::Result<Vec<RespPeer>> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Without it there are fewer connections, which the report says.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let mut crowd = Vec::with_capacity(CROWD_CLIENTS);
    for _ in 0..CROWD_CLIENTS {
        match RespPeer::connect(address) {
            Ok(peer) => crowd.push(peer),
            Err(error) if crowd.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(crowd)
}

/// Fills another database and empties it.
fn flush() -> (Vec<u8>, usize) {
    let mut batch = encode(&[b"SELECT", b"1"]);
    batch.extend((0..CROWD_KEYS).flat_map(store_crowd));
    batch.extend(encode(&[b"FLUSHDB"]));
    (batch, CROWD_KEYS + 2)
}

/// Stores as many short values as one batch of the device holds, each by a command of its own.
fn store_many_in_multi() -> (Vec<u8>, usize) {
    let mut batch = encode(&[b"MULTI"]);
    let store = |number| encode(&[b"SET", format!("multi:{number:0>8}").as_bytes(), b"v"]);
    batch.extend((0..MSET_PAIRS).flat_map(store));
    batch.extend(encode(&[b"EXEC"]));
    (batch, MSET_PAIRS + 2)
}

/// Fills another database, and empties it and writes to it in one transaction.
fn flush_in_multi() -> (Vec<u8>, usize) {
    let mut batch = encode(&[b"SELECT", b"2"]);
    batch.extend((0..CROWD_KEYS).flat_map(store_crowd));
    let transaction: [&[&[u8]]; 4] = [&[b"MULTI"], &[b"FLUSHDB"], &[b"SET", b"first", b"v"], &[b"EXEC"]];
    batch.extend(transaction.iter().flat_map(|command| encode(command)));
    (batch, CROWD_KEYS + 5)
}

/// Encodes one command.
fn encode(arguments: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// A connection to a node.
#[derive(Debug)]
pub(super) struct RespPeer {
    stream: BufReader<TcpStream>,
}

impl RespPeer {
    /// Connects.
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its reply.
    pub(super) fn call(&mut self, arguments: &[&[u8]]) -> io::Result<()> {
        self.stream.get_ref().write_all(&encode(arguments))?;
        self.read_reply()
    }

    /// Sends commands in pieces and reads their replies, so that neither side waits for the other with full sockets.
    fn exchange(&mut self, batch: &[u8], replies: usize) -> io::Result<()> {
        let mut sender = self.stream.get_ref().try_clone()?;
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                step_back();
                sender.write_all(batch)
            });
            for _ in 0..replies {
                self.read_reply()?;
            }
            sending.join().map_err(|_| io::Error::other("the sending thread panicked"))?
        })
    }

    fn read_reply(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let text = line.trim_end();
        let number = || text[1..].parse::<i64>().map_err(|_| io::Error::other(format!("reply {text:?}")));
        match text.bytes().next() {
            Some(b'+' | b':') => Ok(()),
            Some(b'$') => {
                let Ok(bytes) = u64::try_from(number()?) else { return Ok(()) };
                let copied = io::copy(&mut (&mut self.stream).take(bytes + 2), &mut io::sink())?;
                if copied == bytes + 2 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }
            Some(b'*') => (0..number()?).try_for_each(|_| self.read_reply()),
            _ => Err(io::Error::other(format!("reply {text:?}"))),
        }
    }
}

/// Lowers the priority of the calling thread, so that the client that is measured does not wait for a core that the load
/// uses: the node's latency is measured, not that of the machine's scheduler.
fn step_back() {
    // Without it the figures are only worse.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
}

/// A thread that sends a long command over and over.
#[derive(Debug)]
pub(super) struct RunningLoad {
    ended: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: JoinHandle<io::Result<()>>,
}

impl RunningLoad {
    /// Starts the thread.
    pub(super) fn start(address: SocketAddr, load: LongLoad) -> io::Result<Self> {
        let mut peer = RespPeer::connect(address)?;
        let (ended, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (seen_ended, counted) = (Arc::clone(&ended), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            step_back();
            let (batch, replies) = (load.batch)();
            while !seen_ended.load(Ordering::Relaxed) {
                peer.exchange(&batch, replies)?;
                counted.fetch_add(replies as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Self { ended, answered, thread })
    }

    /// Ends the load after its present batch. Returns the number of commands that were answered.
    pub(super) fn stop(self) -> io::Result<u64> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| io::Error::other("the load's thread panicked"))??;
        Ok(self.answered.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_as_many_commands_as_they_say() {
        for load in LONG_LOADS {
            let (bytes, commands) = (load.batch)();
            let starts = |at: usize| bytes[at] == b'*' && (at == 0 || bytes[at - 1] == b'\n');
            assert_eq!((0..bytes.len()).filter(|&at| starts(at)).count(), commands, "{}", load.name);
        }
    }
}
