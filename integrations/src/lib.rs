//! Other libraries over ibex: hyper and rustls over its byte streams, and the comparison of its
//! asynchronous calls with tokio's sockets and tonic.
