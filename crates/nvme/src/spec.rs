//! Wire formats of the NVMe specifications: tables of numbers, layouts and field names. No state, no I/O.

pub mod admin;
pub mod command;
pub mod completion;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod kv;
pub mod log_page;
mod numbered;
pub mod nvm;
pub mod opcode;
pub mod priority;
pub mod register;
pub mod sgl;
pub mod status;
pub mod tcp;
pub mod transfer;
