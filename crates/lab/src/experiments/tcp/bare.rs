//! A server that replies to reads with prepared bytes: its cost is that of the socket alone.
//!
//! Input: connections of Headwater's own host to a node.
//! Output: the node's replies to everything that sets up a queue, relayed; then, for each capsule of 72 bytes, the
//! headers of data and response with its command identifier, and one of many values in separate buffers.
//! Invariant: the host sees the same protocol as from the node, so it waits, sends and receives in the same way. A turn
//! is one receive and one vectored send, the minimum for a server of this protocol.

use crate::cpu_account::CpuAccount;
use crate::experiment::LabError;
use headwater_host::width::narrow;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::tcp::{CommonHeader, DataPdu, PduKind, flag};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Bytes of a command capsule without data.
const CAPSULE_BYTES: usize = 72;
/// Offset of the command identifier in it: after the common header, the opcode and the flags.
const COMMAND_ID: usize = 10;
/// Bytes of each header of a reply: C2HData, and the response capsule.
const HEADER_BYTES: usize = 24;
/// Maximum bytes of one receive.
const RECEIVE_BYTES: usize = 128 << 10;

/// A handle to the replying thread, which ends when its connection closes.
#[derive(Debug)]
pub(super) struct BareServer {
    address: SocketAddr,
    thread: u32,
}

impl BareServer {
    /// Listens for one controller with one queue of `node`, whose reads return `value_bytes` from `values` buffers in
    /// rotation.
    pub(super) fn start(node: SocketAddr, values: usize, value_bytes: usize) -> Result<Self, LabError> {
        let failed = |source| LabError::Io { what: "listen on the loopback", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (id_sender, id_receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // The send fails only if the run is already over.
            let _ = id_sender.send(rustix::thread::gettid().as_raw_nonzero().get());
            // The thread ends with an error when the host closes the connection.
            let _ = relay_admin_queue(&listener, node)
                .and_then(|()| accept_queue(&listener, node))
                .and_then(|host| serve(&host, &vec![vec![7; value_bytes]; values]));
        });
        let id = id_receiver.recv().ok().and_then(|id| u32::try_from(id).ok());
        Ok(Self { address, thread: id.unwrap_or(0) })
    }

    /// Returns the address on which it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the account of the replying thread alone.
    pub(super) fn account(&self) -> CpuAccount {
        CpuAccount::Thread(self.thread)
    }
}

/// Relays the first connection in both directions, each on its own thread.
fn relay_admin_queue(listener: &TcpListener, node: SocketAddr) -> io::Result<()> {
    let (host, _) = listener.accept()?;
    let node = TcpStream::connect(node)?;
    for (mut from, mut to) in [(host.try_clone()?, node.try_clone()?), (node, host)] {
        std::thread::spawn(move || {
            // If one side closes, the relay closes the other, which may be closed already.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Accepts the connection of a queue and relays its set-up: the two initialization PDUs, Connect and its response.
fn accept_queue(listener: &TcpListener, node: SocketAddr) -> io::Result<TcpStream> {
    let (host, _) = listener.accept()?;
    host.set_nodelay(true)?;
    let node = TcpStream::connect(node)?;
    for _ in 0..2 {
        pass_pdu(&host, &node)?;
        pass_pdu(&node, &host)?;
    }
    // Keeps the node's end of the queue open until the run is over.
    std::thread::spawn(move || io::copy(&mut &node, &mut io::sink()));
    Ok(host)
}

fn pass_pdu(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut pdu = vec![0; size_of::<CommonHeader>()];
    from.read_exact(&mut pdu)?;
    let bytes = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
    let head = pdu.len();
    pdu.resize(usize::try_from(bytes).unwrap_or(0).clamp(head, RECEIVE_BYTES), 0);
    from.read_exact(&mut pdu[head..])?;
    to.write_all(&pdu)
}

fn serve(mut host: &TcpStream, values: &[Vec<u8>]) -> io::Result<()> {
    let mut scratch = vec![0; RECEIVE_BYTES];
    let mut headers: Vec<u8> = Vec::new();
    let (mut filled, mut next) = (0, 0);
    loop {
        let received = host.read(&mut scratch[filled..])?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += received;
        let whole = filled - filled % CAPSULE_BYTES;
        headers.clear();
        for capsule in scratch[..whole].chunks_exact(CAPSULE_BYTES) {
            write_headers(&mut headers, [capsule[COMMAND_ID], capsule[COMMAND_ID + 1]], values[0].len());
        }
        // The response to one read precedes the header of the next one's data.
        let mut slices = Vec::with_capacity(2 * whole / CAPSULE_BYTES + 1);
        let mut unsent = &headers[..];
        for number in 0..whole / CAPSULE_BYTES {
            let (front, rest) = unsent.split_at(if number == 0 { HEADER_BYTES } else { 2 * HEADER_BYTES });
            slices.extend([IoSlice::new(front), IoSlice::new(&values[next % values.len()])]);
            unsent = rest;
            next += 1;
        }
        slices.push(IoSlice::new(unsent));
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let sent = host.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
        scratch.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Appends the header of a read's data and its response.
fn write_headers(headers: &mut Vec<u8>, command_id: [u8; 2], value_bytes: usize) {
    let bytes = narrow(value_bytes);
    let common = CommonHeader {
        kind: PduKind::ControllerData.number(),
        flags: flag::LAST_PDU,
        header_bytes: 24,
        data_offset: 24,
        pdu_bytes: U32::new(24 + bytes),
    };
    let data = DataPdu {
        common,
        command_id: U16::from_bytes(command_id),
        transfer_tag: U16::new(0),
        offset: U32::new(0),
        bytes: U32::new(bytes),
        reserved: U32::new(0),
    };
    headers.extend_from_slice(data.as_bytes());
    let common = CommonHeader {
        kind: PduKind::Response.number(),
        flags: 0,
        header_bytes: 24,
        data_offset: 0,
        pdu_bytes: U32::new(24),
    };
    let entry = CompletionEntry {
        result: U32::new(bytes),
        submission_head: U16::new(u16::MAX),
        command_id: U16::from_bytes(command_id),
        ..CompletionEntry::default()
    };
    headers.extend_from_slice(common.as_bytes());
    headers.extend_from_slice(entry.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capsule_receives_its_reply_for_every_split() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let serving = std::thread::spawn(move || serve(&server, &[vec![1; 4_096], vec![2; 4_096]]));
        let mut capsules = Vec::new();
        for number in 0..40_u8 {
            let mut capsule = [0; CAPSULE_BYTES];
            capsule[COMMAND_ID] = number;
            capsules.extend(capsule);
        }
        let mut answer = vec![0; 2 * HEADER_BYTES + 4_096];
        let mut number = 0;
        for piece in capsules.chunks(100) {
            host.write_all(piece).unwrap();
        }
        while number < 40 {
            host.read_exact(&mut answer).unwrap();
            let response = &answer[HEADER_BYTES + 4_096..];
            assert_eq!((answer[8], response[8 + 12]), (number, number));
            assert_eq!(answer[HEADER_BYTES], number % 2 + 1, "the values rotate");
            number += 1;
        }
        host.shutdown(Shutdown::Both).unwrap();
        assert!(serving.join().unwrap().is_err(), "the server ends when its host disconnects");
    }
}
