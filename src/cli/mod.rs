//! One file for each subcommand.

pub mod check;
pub mod config;
pub mod pull;
mod table;
