//! Every fuzz body over its corpus, and over cut and bit-flipped variants of it; no nightly toolchain is needed.
#![cfg(not(loom))]

mod admin_command;
mod admission;
mod attach_message;
mod backup_message;
mod command_decode;
mod commit_record;
mod config;
mod data_pointer;
mod media_recovery;
mod media_version2;
mod nvme_driver;
mod page_spare;
mod psk_interchange;
mod record_header;
mod replay;
mod resp;
mod superblock;
mod tcp_initiator;
mod tcp_target;
mod vfio_user;
