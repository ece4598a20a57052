//! A server of reads that knows every answer beforehand: what the socket alone costs.
//!
//! In: connections of the project's own host, meant for a node. Out: the node's answers to everything that makes a queue,
//! relayed; then, for each capsule of 72 bytes, the headers of data and response with its command identifier and one of many
//! values that lie apart. Invariant: the host cannot tell it from the node, so it waits, sends and receives in the same way;
//! a turn is one receive and one vectored send, less than which no server of this protocol can do.

use crate::cpu_account::CpuAccount;
use crate::experiment::LabError;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::tcp::{CommonHeader, DataPdu, PduKind, flag};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Bytes of a command capsule without data.
const CAPSULE_BYTES: usize = 72;
/// Where the command identifier is in it: behind the common header, the opcode and the flags.
const COMMAND_ID: usize = 10;
/// Bytes of each header that answers: C2HData, and the response capsule.
const HEADER_BYTES: usize = 24;
/// Bytes asked of the kernel in one receive.
const RECEIVE_BYTES: usize = 128 << 10;

/// The answering thread. It ends when its connection does.
#[derive(Debug)]
pub(super) struct BareServer {
    address: SocketAddr,
    thread: u32,
}

impl BareServer {
    /// Listens for one controller with one queue of `node`, whose reads bring `value_bytes` from `values` places in turn.
    pub(super) fn start(node: SocketAddr, values: usize, value_bytes: usize) -> Result<Self, LabError> {
        let failed = |source| LabError::Io { what: "listen on the loopback", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            // Nobody hears it only when the run is over already.
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            // The other side is gone: that is how it ends.
            let _ = relay_admin_queue(&listener, node)
                .and_then(|()| accept_queue(&listener, node))
                .and_then(|host| serve(&host, &vec![vec![7; value_bytes]; values]));
        });
        let id = told.recv().ok().and_then(|id| u32::try_from(id).ok());
        Ok(Self { address, thread: id.unwrap_or(0) })
    }

    /// Where the host finds it.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The answering thread and no other.
    pub(super) fn account(&self) -> CpuAccount {
        CpuAccount::Thread(self.thread)
    }
}

/// Passes the first connection through, both ways, on threads of their own.
fn relay_admin_queue(listener: &TcpListener, node: SocketAddr) -> io::Result<()> {
    let (host, _) = listener.accept()?;
    let node = TcpStream::connect(node)?;
    for (mut from, mut to) in [(host.try_clone()?, node.try_clone()?), (node, host)] {
        std::thread::spawn(move || {
            // Whichever side ends, the other is told; it may know already.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Takes the connection of a queue and passes what makes it one: the two that initialize, Connect and its response.
fn accept_queue(listener: &TcpListener, node: SocketAddr) -> io::Result<TcpStream> {
    let (host, _) = listener.accept()?;
    host.set_nodelay(true)?;
    let node = TcpStream::connect(node)?;
    for _ in 0..2 {
        pass_pdu(&host, &node)?;
        pass_pdu(&node, &host)?;
    }
    // The node keeps its end of the queue until the run is over.
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
    let (mut came, mut next) = (0, 0);
    loop {
        let received = host.read(&mut scratch[came..])?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        came += received;
        let whole = came - came % CAPSULE_BYTES;
        headers.clear();
        for capsule in scratch[..whole].chunks_exact(CAPSULE_BYTES) {
            write_headers(&mut headers, [capsule[COMMAND_ID], capsule[COMMAND_ID + 1]], values[0].len());
        }
        // The response to one read lies before the header of the next one's data.
        let mut slices = Vec::with_capacity(2 * whole / CAPSULE_BYTES + 1);
        let mut text = &headers[..];
        for number in 0..whole / CAPSULE_BYTES {
            let (front, rest) = text.split_at(if number == 0 { HEADER_BYTES } else { 2 * HEADER_BYTES });
            slices.extend([IoSlice::new(front), IoSlice::new(&values[next % values.len()])]);
            text = rest;
            next += 1;
        }
        slices.push(IoSlice::new(text));
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let sent = host.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
        scratch.copy_within(whole..came, 0);
        came -= whole;
    }
}

/// The header of a read's data and its response.
fn write_headers(headers: &mut Vec<u8>, command_id: [u8; 2], value_bytes: usize) {
    let bytes = u32::try_from(value_bytes).unwrap_or(u32::MAX);
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
    fn every_capsule_has_its_answer_however_it_is_cut() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let serving = std::thread::spawn(move || serve(&server, &[vec![1; 4_096], vec![2; 4_096]]));
        let mut asked = Vec::new();
        for number in 0..40_u8 {
            let mut capsule = [0; CAPSULE_BYTES];
            capsule[COMMAND_ID] = number;
            asked.extend(capsule);
        }
        let mut answer = vec![0; 2 * HEADER_BYTES + 4_096];
        let mut number = 0;
        for cut in asked.chunks(100) {
            host.write_all(cut).unwrap();
        }
        while number < 40 {
            host.read_exact(&mut answer).unwrap();
            let response = &answer[HEADER_BYTES + 4_096..];
            assert_eq!((answer[8], response[8 + 12]), (number, number));
            assert_eq!(answer[HEADER_BYTES], number % 2 + 1, "the values come in turn");
            number += 1;
        }
        host.shutdown(Shutdown::Both).unwrap();
        assert!(serving.join().unwrap().is_err(), "it ends with its host");
    }
}
