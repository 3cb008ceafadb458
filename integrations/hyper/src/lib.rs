//! hyper over ibex's byte streams.
