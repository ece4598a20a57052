//! Flash in memory that keeps NAND's rules. (Filled in the next commit.)
