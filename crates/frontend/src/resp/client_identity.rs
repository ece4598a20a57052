//! The identity of a client: its addresses, and the names that it gave itself.
//!
//! Input: an accepted socket's addresses; CLIENT SETNAME and CLIENT SETINFO. Output: the fields of CLIENT LIST and of the
//! slow log.

use headwater_host::clock::Nanos;

/// The identity of a client.
#[derive(Debug)]
pub(crate) struct ClientIdentity {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) local: String,
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) created: Nanos,
}
