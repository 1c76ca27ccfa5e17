//! Golden decisions.
