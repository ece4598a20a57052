//! The RESP face.

pub mod limits;
pub mod parser;
