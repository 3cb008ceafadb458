//! Where sessions over queue pairs come to a limit.
