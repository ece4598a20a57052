//! What travels on the wire, and nothing but that: tables, layouts and their names. No state, no I/O.

pub mod command;
pub mod completion;
pub mod kv;
pub mod nvm;
pub mod opcode;
pub mod status;
pub mod tcp;
