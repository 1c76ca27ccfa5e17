//! The services, over gRPC and HTTP: wire types end here.
//!
//! A connection comes in through `transport`, a call through `access`, by what `security` was given. A gRPC call then passes
//! `call` (deadline, span, limits named) and is decoded by its service (`oip`, `own`, `tei`); one over HTTP
//! by its route (`http`). Both make a `request` of it, which is tokenized and handed to the engine through `port`; `tasks`
//! is what can be asked of a model whichever protocol asks, and `results` makes vectors into what was asked for. `errors` is
//! the only place where anything becomes a status; `http::answer` says it in the forms of HTTP's clients.

pub mod proto;
mod limits;
mod port;
mod errors;
mod rejections;
mod problem;
mod call;
mod schema;
mod fields;
mod carried;
mod codec;
mod tokenizer;
mod context;
mod request;
mod traced;
mod aside;
mod results;
mod spans;
mod tasks;
mod activity;
mod arriving;
mod streams;
mod oip;
mod own;
mod tei;
mod http;
mod health;
mod kept;
mod access;
mod transport;
mod security;
mod server;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use port::{Inference, Operations, Reload, ReloadRefusal, Reloaded};
pub use security::{Security, SecurityError, SecurityFiles};
pub use server::{Drained, Listeners, ServeError, serve, serve_routes};
