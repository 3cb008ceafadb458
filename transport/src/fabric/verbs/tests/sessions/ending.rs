//! How sessions over queue pairs end.
