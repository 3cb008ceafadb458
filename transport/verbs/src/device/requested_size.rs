//! Sizes that a device limits.
#![forbid(unsafe_code)]

/// A requested size beside the device's limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedSize {
    /// The object whose size it is.
    pub(crate) what: &'static str,
    /// The size that was requested.
    pub(crate) asked: u64,
    /// The device's limit.
    pub(crate) limit: u64,
    /// The setting that asks for less.
    pub(crate) setting: &'static str,
}

impl RequestedSize {
    pub(crate) fn new(what: &'static str, asked: u32, limit: u32, setting: &'static str) -> Self {
        Self {
            what,
            asked: asked.into(),
            limit: limit.into(),
            setting,
        }
    }
}
