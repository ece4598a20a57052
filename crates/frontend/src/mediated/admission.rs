//! Validation of a client's entry together with the memory and the ranges that it names.
//!
//! Input: an entry as its client wrote it, the client, the controller's namespaces. Output: the node's own entry, the
//! controller's addresses of its data, and validated copies of the ranges of a discard. Invariant: an admitted entry
//! names only blocks that the client may access and memory that it has registered for the controller.

use super::approval::{ApprovedEntry, DataRequirement, approve};
use headwater_dma::iova::{ClientSegments, Iova, IovaRange};
use headwater_nvme::driver::ScannedNamespace;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::sgl::PointerKind;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::RingClient;
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Maximum ranges of a Dataset Management.
const RANGES_MAX: usize = 256;

/// A validator of entries, with the addresses and ranges of the last one.
#[derive(Debug)]
pub struct EntryAdmission {
    runs: Vec<IovaRange>,
    ranges: Box<[DatasetRange; RANGES_MAX]>,
    /// Number of ranges of the last entry.
    count: usize,
}

/// An entry that may be submitted to the controller.
#[derive(Debug)]
pub struct AdmittedEntry {
    /// The node's own entry, without a data pointer.
    pub entry: SubmissionEntry,
    /// Keeps the client's memory mapped for as long as the command is in flight.
    pub data: ClientSegments,
}

impl Default for EntryAdmission {
    fn default() -> Self {
        Self { runs: Vec::new(), ranges: Box::new([DatasetRange::new_zeroed(); RANGES_MAX]), count: 0 }
    }
}

impl EntryAdmission {
    /// Validates an entry. `transfer_bytes_max` is the maximum length of one command's data.
    ///
    /// # Errors
    /// The status that the client receives; then there are neither runs nor ranges.
    ///
    /// # Panics
    /// Never: a resolved range is copied whole.
    pub fn validate(
        &mut self,
        entry: &SubmissionEntry,
        client: &RingClient,
        namespaces: &[ScannedNamespace],
        transfer_bytes_max: u64,
    ) -> Result<AdmittedEntry, Status> {
        self.runs.clear();
        self.count = 0;
        let ApprovedEntry { entry: own, need } =
            approve(entry, &client.rights, namespaces, transfer_bytes_max)?;
        match need {
            DataRequirement::Nothing => Ok(AdmittedEntry { entry: own, data: ClientSegments::default() }),
            DataRequirement::Blocks(bytes) => {
                let data = resolve_data(client, entry, bytes)?;
                if data.device_ranges(&mut self.runs).is_err() {
                    self.runs.clear();
                    return Err(Status::DATA_TRANSFER_ERROR);
                }
                let named: u64 = self.runs.iter().map(|run| u64::from(run.bytes)).sum();
                assert!(named == bytes, "the addresses of {bytes} bytes of data cover {named}");
                Ok(AdmittedEntry { entry: own, data })
            }
            DataRequirement::Ranges(count, window) => {
                let ranges = self.ranges.get_mut(..usize::from(count)).unwrap_or_default();
                let bytes = ranges.as_mut_bytes();
                let data = resolve_data(client, entry, bytes.len() as u64)?;
                // Copied once: the validated ranges are this copy, which no client can write.
                if data.copy_in(0, bytes) != bytes.len() {
                    return Err(Status::DATA_TRANSFER_ERROR);
                }
                window.check_ranges(ranges)?;
                self.count = ranges.len();
                Ok(AdmittedEntry { entry: own, data: ClientSegments::default() })
            }
        }
    }

    /// Returns the controller's addresses of the last entry's data, in the order of the data.
    #[must_use]
    pub fn runs(&self) -> &[IovaRange] {
        &self.runs
    }

    /// Adds the controller's address of the list of ranges.
    pub(super) fn add_run(&mut self, run: IovaRange) {
        self.runs.push(run);
    }

    /// Returns the ranges of the last entry, all validated.
    #[must_use]
    pub fn ranges(&self) -> &[DatasetRange] {
        self.ranges.get(..self.count).unwrap_or_default()
    }
}

/// Resolves the client memory that an entry names.
fn resolve_data(client: &RingClient, entry: &SubmissionEntry, bytes: u64) -> Result<ClientSegments, Status> {
    if entry.pointer_kind() != PointerKind::Prp || entry.prp2.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    client.memory.resolve(Iova(entry.prp1.get()), bytes).map_err(|_| Status::DATA_TRANSFER_ERROR)
}
