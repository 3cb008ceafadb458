//! Fabrics.
pub mod shm;
