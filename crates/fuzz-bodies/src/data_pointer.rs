//! A data pointer over host memory: it describes as many bytes as the data has, or is refused, after a bounded number
//! of reads, for any contents of memory.
//!
//! Input: 16 bytes of data pointer, 4 bytes of length, one byte of PSDT and direction, one of page size; then memory,
//! which repeats over the whole address space, so that every list can be read.

use headwater_dma::iova::Iova;
use headwater_nvme::data_pointer::sgl::SGL_DESCRIPTORS_MAX;
use headwater_nvme::data_pointer::{DataRange, HostTransfer, PageBytes, data_ranges};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::sgl::PointerKind;
use headwater_nvme::spec::status::Status;

/// Bytes of the input before memory.
const HEAD: usize = 22;
/// Bytes that one command may move.
const BYTES_MAX: u32 = 16 << 20;

/// Translates a data pointer into ranges of memory.
///
/// # Panics
/// If the ranges have another length than the data, or if too much memory is read.
pub fn body(bytes: &[u8]) {
    let mut head = [0; HEAD];
    let known = bytes.len().min(HEAD);
    head[..known].copy_from_slice(&bytes[..known]);
    let memory = &bytes[known..];
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    // PSDT lies in bits 15:14 of the first word, the data pointer in the fourth and fifth.
    let flags = u64::from(head[20] & 0xC0) << 8;
    let entry = SubmissionEntry::from_words([flags, 0, 0, word(0), word(8), 0, 0, 0]);
    let length = u32::from_le_bytes(head[16..20].try_into().expect("four bytes")) % (BYTES_MAX + 1);
    let transfer = match head[20] & 1 {
        0 => HostTransfer::FromHost(length),
        _ => HostTransfer::ToHost(length),
    };
    let page = PageBytes::of_mps(head[21] % 16).expect("below 16");
    let mut words_read = 0_u64;
    let read = |at: Iova, into: &mut [u8]| {
        words_read += into.len() as u64 / 8;
        // No memory follows the end of the address space.
        at.0.checked_add(into.len() as u64).ok_or(Status::DATA_TRANSFER_ERROR)?;
        for (address, byte) in (at.0..).zip(into) {
            let size = u64::try_from(memory.len()).expect("64 bits fit");
            let index = address.checked_rem(size).ok_or(Status::DATA_TRANSFER_ERROR)?;
            *byte = memory[usize::try_from(index).expect("below a length")];
        }
        Ok(())
    };
    let mut ranges = Vec::new();
    let taken = data_ranges(&entry, transfer, page, read, &mut ranges);
    let pages = u64::from(length.div_ceil(page.get())) + 1;
    // The entries, and one pointer for each list page.
    let words_max = (2 * pages + 2).max(2 * u64::from(SGL_DESCRIPTORS_MAX));
    assert!(words_read <= words_max, "{words_read} words read for {length} bytes");
    if let Err(status) = taken {
        assert!(!status.is_success() && status.do_not_retry, "{status:?}");
        return;
    }
    let mut described = 0;
    for range in &ranges {
        described += match *range {
            DataRange::Memory(range) => u64::from(range.bytes),
            DataRange::Discard(bytes) => {
                assert_eq!(entry.pointer_kind(), PointerKind::Sgl, "PRPs discard nothing");
                assert!(
                    matches!(transfer, HostTransfer::ToHost(_)),
                    "a transfer from the host discards bytes"
                );
                u64::from(bytes)
            }
        };
    }
    assert_eq!(described, u64::from(length), "the described length is not that of the data");
}
