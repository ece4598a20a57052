//! Whether an entry of a client goes to the controller, with everything that it names.
//!
//! In: an entry as its client wrote it, the client, the controller's namespaces. Out: an entry of the node's own, the
//! controller's addresses of its data, and the ranges of a discard as they were judged. Invariant: what was admitted names
//! blocks that the client may touch and memory that it has registered for the controller, and nothing else.

use super::approval::{Approved, Need, approve};
use headwater_dma::iova::{Iova, IovaRange, Segments};
use headwater_nvme::driver::Namespace;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::sgl::PointerKind;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::Client;
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Most ranges of a Dataset Management.
const RANGES_MAX: usize = 256;

/// Judges entries, one after the other, and has what the last one names.
#[derive(Debug)]
pub struct Admission {
    runs: Vec<IovaRange>,
    ranges: Box<[DatasetRange; RANGES_MAX]>,
    /// How many of the ranges are the last entry's.
    count: usize,
}

/// An entry that may go to the controller.
#[derive(Debug)]
pub struct Admitted {
    /// The node's own entry, without a data pointer.
    pub entry: SubmissionEntry,
    /// Keeps the client's memory mapped for as long as the command is in flight.
    pub data: Segments,
}

impl Default for Admission {
    fn default() -> Self {
        Self { runs: Vec::new(), ranges: Box::new([DatasetRange::new_zeroed(); RANGES_MAX]), count: 0 }
    }
}

impl Admission {
    /// Judges an entry. `transfer_bytes_max` is the most that one command moves.
    ///
    /// # Errors
    /// The status that the client gets; then there are neither runs nor ranges.
    pub fn judge(
        &mut self,
        entry: &SubmissionEntry,
        client: &Client,
        namespaces: &[Namespace],
        transfer_bytes_max: u64,
    ) -> Result<Admitted, Status> {
        self.runs.clear();
        self.count = 0;
        let Approved { entry: own, need } = approve(entry, &client.rights, namespaces, transfer_bytes_max)?;
        match need {
            Need::Nothing => Ok(Admitted { entry: own, data: Segments::default() }),
            Need::Blocks(bytes) => {
                let data = find(client, entry, bytes)?;
                if data.runs(&mut self.runs).is_err() {
                    self.runs.clear();
                    return Err(Status::DATA_TRANSFER_ERROR);
                }
                Ok(Admitted { entry: own, data })
            }
            Need::Ranges(count, window) => {
                let ranges = self.ranges.get_mut(..usize::from(count)).unwrap_or_default();
                let bytes = ranges.as_mut_bytes();
                let data = find(client, entry, bytes.len() as u64)?;
                // Once: what is judged is this copy, which no client writes any more.
                data.copy_in(0, bytes);
                window.check_ranges(ranges)?;
                self.count = ranges.len();
                Ok(Admitted { entry: own, data: Segments::default() })
            }
        }
    }

    /// The controller's addresses of the last entry's data, in the order of the data.
    #[must_use]
    pub fn runs(&self) -> &[IovaRange] {
        &self.runs
    }

    /// Adds where the ranges lie for the controller.
    pub(super) fn add_run(&mut self, run: IovaRange) {
        self.runs.push(run);
    }

    /// The ranges of the last entry, each of them judged.
    #[must_use]
    pub fn ranges(&self) -> &[DatasetRange] {
        self.ranges.get(..self.count).unwrap_or_default()
    }
}

/// The client memory that an entry names.
fn find(client: &Client, entry: &SubmissionEntry, bytes: u64) -> Result<Segments, Status> {
    if entry.pointer_kind() != PointerKind::Prp || entry.prp2.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    client.memory.resolve(Iova(entry.prp1.get()), bytes).map_err(|_| Status::DATA_TRANSFER_ERROR)
}
