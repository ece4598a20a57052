//! The body of each fuzz target: a function of bytes that panics where a promise about untrusted input is broken.
//!
//! Input: bytes, from libfuzzer (`fuzz/`) or from the saved corpora (`tests/corpora`). Output: nothing; a violated
//! promise is a panic.
#![forbid(unsafe_code)]

/// Fuzzes a controller with register accesses and admin commands.
pub mod admin_command;
/// Fuzzes the validation of entries that attached processes submit to a shared SSD.
pub mod admission;
/// Fuzzes the decoding of datagrams of the attach socket.
pub mod attach_message;
/// Fuzzes both ends of the socket for backups.
pub mod backup_message;
/// Fuzzes the decoding of submission queue entries.
pub mod command_decode;
/// Fuzzes the decoding of commit records.
pub mod commit_record;
/// Fuzzes the parsing of configuration files.
pub mod config;
/// Fuzzes the translation of PRPs and SGLs with the memory that they point to.
pub mod data_pointer;
/// Fuzzes the recovery of a device from a corrupted medium.
pub mod media_recovery;
/// Fuzzes the recovery of a device from a medium of version 2 whose checksums match.
pub mod media_version2;
mod media_version2_image;
/// Fuzzes the NVMe driver with a hostile controller.
pub mod nvme_driver;
/// Fuzzes the decoding of spares of pages.
pub mod page_spare;
mod patch;
/// Fuzzes the parsing of keys in interchange form.
pub mod psk_interchange;
/// Fuzzes the decoding of headers of records.
pub mod record_header;
/// Fuzzes the parsing of RESP streams, cut into reads in two ways.
pub mod resp;
/// Fuzzes the superblock of a flash file.
pub mod superblock;
/// Fuzzes the host's end of an NVMe/TCP connection.
pub mod tcp_initiator;
/// Fuzzes the controller's end of an NVMe/TCP connection.
pub mod tcp_target;
/// Fuzzes a vfio-user server with a hostile hypervisor and guest.
pub mod vfio_user;
