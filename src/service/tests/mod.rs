//! The services over a real connection.
