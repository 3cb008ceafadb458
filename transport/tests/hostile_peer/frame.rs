//! A frame as a hostile peer builds it.

use ibex_protocol::format::{
    control::Control,
    frame::{Extension, FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES},
};

/// A frame of any content, with a header that agrees with the content.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) channel: u32,
    pub(crate) sequence: u32,
    pub(crate) extension: Option<Extension>,
    pub(crate) body: Vec<u8>,
}

impl Frame {
    pub(crate) fn control(control: &Control) -> Self {
        let mut body = Vec::new();
        control.encode(&mut body);
        Self {
            kind: FrameKind::Control,
            channel: 0,
            sequence: 0,
            extension: None,
            body,
        }
    }

    pub(crate) fn records(body: Vec<u8>) -> Self {
        Self {
            kind: FrameKind::Records,
            channel: 2,
            sequence: 1,
            extension: None,
            body,
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let extension = self.extension.map(|extension| extension.to_bytes());
        let extension = extension.as_ref().map_or(&[][..], |bytes| bytes);
        let header = FrameHeader {
            length: (HEADER_BYTES + extension.len() + self.body.len()) as u32,
            channel: self.channel,
            kind: self.kind,
            extension: !extension.is_empty(),
            pad: 0,
            sequence: self.sequence,
        };
        let mut bytes = [&header.to_bytes()[..], extension, &self.body].concat();
        bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
        bytes
    }
}
