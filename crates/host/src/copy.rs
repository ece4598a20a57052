//! copy
