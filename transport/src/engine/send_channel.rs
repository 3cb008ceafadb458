//! The sending end of a channel as the engine sees it: what was sent, what is due.
#![forbid(unsafe_code)]

use super::{
    control::CloseReason,
    counters::{Counters, ImpossibleCounters},
    large::Transfers,
};

/// One sending end.
#[derive(Debug, Default)]
pub(super) struct SendChannel {
    // The wire.
    /// Alignment of payloads, once the channel is open.
    pub(super) alignment: usize,
    /// Messages put into frames so far.
    pub(super) sent: u64,
    /// The ring position behind the last of them.
    pub(super) sent_position: u64,
    /// Large messages under way.
    pub(super) large: Transfers,
    /// Large messages told to us whose announcement is not in a frame yet.
    pub(super) unannounced: std::collections::VecDeque<(u64, u64)>,
    /// The last frame was a chunk: records go next, so neither starves the other.
    pub(super) chunk_went_last: bool,

    // What the peer said.
    pub(super) counters: Counters,

    // What the handle wants.
    /// The handle is gone; a close follows once `.0` messages were sent.
    pub(super) closing: Option<(u64, CloseReason)>,
    /// In the session's ready queue.
    pub(super) queued: bool,
}

impl SendChannel {
    /// Joins the receiving end's news.
    pub(super) fn handle_counters(&mut self, news: &Counters) -> Result<bool, ImpossibleCounters> {
        self.counters.join(news, self.sent, self.sent_position)
    }

    /// Accounts for a run of records that goes into a frame.
    #[inline]
    pub(super) fn records_went(&mut self, records: u64, bytes: usize) {
        self.count(records, bytes);
        while let Some(&(sequence, length)) = self.unannounced.front() {
            if sequence > self.sent {
                break;
            }
            self.unannounced.pop_front();
            self.large.announce(sequence, length);
        }
    }

    /// The same of one record where there is [nothing large](Self::has_nothing_large).
    #[inline]
    pub(super) fn lone_record_went(&mut self, bytes: usize) {
        debug_assert!(self.has_nothing_large());
        self.count(1, bytes);
    }

    #[inline]
    fn count(&mut self, records: u64, bytes: usize) {
        self.sent += records;
        self.sent_position += bytes as u64;
        self.chunk_went_last = false;
    }

    /// Whether no large message is under way or about to be.
    #[inline]
    pub(super) fn has_nothing_large(&self) -> bool {
        self.large.is_empty() && self.unannounced.is_empty()
    }

    /// Whether everything that the handle published is on its way. A session that is
    /// closed from another thread may have sent more than it knew to be published.
    pub(super) fn is_drained(&self, published: u64) -> bool {
        self.sent >= published && self.has_nothing_large()
    }
}
