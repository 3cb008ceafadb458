//! What queue pairs of all kinds have in common.

/// Gives a kind of queue pair, which has a [`QueuePair`](crate::QueuePair) in its field `pair`, the
/// methods that all kinds have.
///
/// With `unreliable`, it gets those of the kinds that go on after a failed send.
macro_rules! delegates {
    (unreliable $name:ident) => {
        delegates!($name);

        impl $name {
            /// Lets the send queue go on after a send has failed: SQE → RTS. What was posted behind that
            /// send is flushed, and receives have gone on meanwhile.
            ///
            /// # Errors
            /// [`ConnectError`](crate::ConnectError) if the device refuses: no send has failed, or the
            /// queue pair is in ERR.
            pub fn recover_sends(&mut self) -> Result<(), $crate::VerbsError> {
                self.pair.recover_sends()
            }
        }
    };
    ($name:ident) => {
        impl $name {
            /// Returns the queue pair's number, 24 bits, by which completions and events name it.
            #[must_use]
            pub fn number(&self) -> u32 {
                self.pair.number()
            }

            /// Returns the state that the queue pair was last brought to.
            #[must_use]
            pub fn state(&self) -> $crate::QueuePairState {
                self.pair.state()
            }

            /// Asks the device for what it knows of the queue pair
            /// ([`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)).
            ///
            /// # Errors
            /// [`VerbsError`](crate::VerbsError) if the device refuses.
            pub fn query(&self) -> Result<$crate::QueriedPair, $crate::VerbsError> {
                self.pair.query()
            }

            /// Returns the number of bytes of an inline send, as the device gave them.
            #[must_use]
            pub fn max_inline_bytes(&self) -> u32 {
                self.pair.max_inline_bytes()
            }

            /// Returns the number of pieces of one send, as the device gave them.
            #[must_use]
            pub fn max_send_entries(&self) -> u32 {
                self.pair.max_send_entries()
            }

            /// Returns the facts that the peer has to know.
            #[must_use]
            pub fn endpoint(
                &self,
                first: $crate::FirstSequence,
                local: &$crate::LocalPort,
            ) -> $crate::RemoteEndpoint {
                self.pair.endpoint(first, local)
            }

            /// Returns the number of sends that may still be posted.
            #[must_use]
            pub fn send_room(&self) -> u32 {
                self.pair.send_room()
            }

            /// Returns the number of sends that are posted and not retired.
            #[must_use]
            pub fn outstanding_sends(&self) -> u32 {
                self.pair.outstanding_sends()
            }

            /// Moves the queue pair to ERR: everything outstanding is flushed, and nothing goes out
            /// any more.
            ///
            /// # Errors
            /// [`ConnectError`](crate::ConnectError) if the device refuses, which a device that is
            /// gone does.
            pub fn fail(&mut self) -> Result<(), $crate::VerbsError> {
                self.pair.fail()
            }

            /// Returns the library's queue pair.
            ///
            /// # Safety
            /// The rules of [`raw`](crate::raw).
            #[cfg(feature = "rdma-sys")]
            #[must_use]
            pub unsafe fn as_ptr(&self) -> Option<std::ptr::NonNull<rdma_sys::ibv_qp>> {
                // SAFETY: the caller's contract.
                unsafe { self.pair.as_ptr() }
            }

            /// Begins the end of the queue pair, as [`Teardown::begin`](crate::Teardown::begin)
            /// does.
            #[must_use]
            pub fn teardown(
                self,
                generation: u32,
                now: std::time::Instant,
                timeout: std::time::Duration,
            ) -> $crate::Teardown {
                $crate::Teardown::begin(self.pair, generation, now, timeout)
            }
        }
    };
}

pub(super) use delegates;
