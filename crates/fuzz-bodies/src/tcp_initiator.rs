//! NVMe/TCP, the host's end: for any stream of a controller, nothing panics, no buffer is written outside its bounds,
//! and each lent buffer is returned once.
//!
//! Input: one byte that selects the requested digests and the cut, then the stream, optionally preceded by a valid
//! ICResp. Four commands are outstanding: two reads, a write that needs an R2T, and one without data.

use headwater_host::copy::crc32c;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::tcp::{
    CommandTransfer, DigestMode, DigestSettings, InitiatorConnection, InitiatorParameters, InitiatorStep,
    LentBytes,
};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// A buffer lent to the connection.
#[derive(Clone, Debug)]
struct LentVec(Rc<RefCell<Vec<u8>>>);

impl LentBytes for LentVec {
    fn bytes(&self) -> usize {
        self.0.borrow().len()
    }
    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        text.extend_from_slice(&self.0.borrow()[range]);
    }
    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32 {
        crc32c(seed, &self.0.borrow()[range])
    }
    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Passes a stream of a controller to an initiator.
///
/// # Panics
/// If a lent buffer is not returned exactly once, or if the output is not bounded.
pub fn body(bytes: &[u8]) {
    let Some((&mode, stream)) = bytes.split_first() else {
        return;
    };
    let on = |bit| if mode & bit == 0 { DigestMode::Off } else { DigestMode::On };
    let mut host = InitiatorConnection::new(InitiatorParameters {
        digests: DigestSettings { header: on(0x40), data: on(0x80) },
        depth: 4,
        in_capsule_max: 512,
        ..InitiatorParameters::default()
    });
    let mut submitted = 0;
    if mode & 0x10 != 0 {
        let mut response = [0; 128];
        response[0] = 1;
        response[2] = 128;
        response[4] = 128;
        response[11] = mode >> 6;
        response[13] = 0x10;
        assert!(matches!(host.advance(&mut &response[..]), InitiatorStep::Opened));
        let lend = |bytes| LentVec(Rc::new(RefCell::new(vec![1; bytes])));
        for transfer in [
            CommandTransfer::In(lend(512)),
            CommandTransfer::In(lend(9_000)),
            CommandTransfer::Out(lend(9_000)),
            CommandTransfer::None,
        ] {
            let entry = SubmissionEntry { opcode: 2, ..SubmissionEntry::default() };
            submitted += usize::from(host.submit(entry, transfer).is_ok());
        }
    }
    let mut returned = 0;
    'stream: for part in stream.chunks(1 + usize::from(mode & 0x0f) * 37) {
        let mut input = part;
        loop {
            match host.advance(&mut input) {
                InitiatorStep::NeedInput => break,
                InitiatorStep::Opened => {}
                InitiatorStep::Completed(done) => {
                    returned += 1;
                    if let CommandTransfer::In(buffer) = done.transfer {
                        assert!(usize::try_from(done.received).is_ok_and(|bytes| bytes <= buffer.bytes()));
                    }
                }
                InitiatorStep::Closed(_) => break 'stream,
            }
        }
    }
    // R2Ts never request more than the write has: the output is headers, its data, and a header for each PDU of at
    // least 4,096 bytes of it, or for each R2T, of which there is at most one a byte.
    assert!(host.outgoing().pending() <= 1_024 + 9_000 * 40, "the output is not bounded");
    returned += host.abandon().len();
    assert_eq!(returned, submitted, "each command is returned once");
}
