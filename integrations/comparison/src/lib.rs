//! The package of the benchmark `asynchronous`, which has no library.
