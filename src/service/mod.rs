//! gRPC services: wire types end here.
//!
//! A call passes `call` (deadline, span, limits named), is decoded by its service (`oip`, `own`) into a `request`,
//! which tokenizes it and hands it to the engine through `port`; `results` makes vectors into what was asked for.
//! `errors` is the only place where anything becomes a status.

pub mod proto;
mod limits;
mod port;
mod errors;
mod call;
mod tokenizer;
mod context;
mod request;
mod results;
mod tasks;
mod streams;
mod oip;
mod own;
mod tei;
mod http;
mod health;
mod server;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use port::{Inference, Operations};
pub use server::{Drained, Listeners, ServeError, serve};
