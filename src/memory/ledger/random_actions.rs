//! Random actions.
