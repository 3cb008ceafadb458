//! Nothing: this package has a test alone.
