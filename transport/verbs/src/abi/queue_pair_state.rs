//! The states of a queue pair. [`QueuePairKind`](super::queue_pair_kind::QueuePairKind) has the changes
//! from one to the next.
#![forbid(unsafe_code)]

use super::enumeration::enumeration;

enumeration! {
    /// `enum ibv_qp_state`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    QueuePairState(u32), "unknown state {}", {
        /// The queue pair was made, and nothing else.
        #[default]
        Reset = 0, "RESET";
        /// The queue pair takes receives; nothing arrives.
        Init = 1, "INIT";
        /// The queue pair receives, and answers the peer.
        ReadyToReceive = 2, "RTR";
        /// The queue pair receives and sends.
        ReadyToSend = 3, "RTS";
        /// The send queue takes requests and begins none; those that were begun are finished.
        SendQueueDrained = 4, "SQD";
        /// A send failed, and the queue pair still receives. Reliable connections are never in it.
        SendQueueError = 5, "SQE";
        /// Dead: every request comes back flushed.
        Error = 6, "ERR";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_keeps_its_number() {
        for raw in 0..9 {
            let state = QueuePairState::from_raw(raw);
            assert_eq!(state.to_raw(), raw);
            assert_eq!(matches!(state, QueuePairState::Unknown(_)), raw > 6);
        }
        assert_eq!(QueuePairState::from_raw(9).to_string(), "unknown state 9");
    }
}
