//! Connections: accepted, encrypted where that is configured, bounded in number, and ended where nothing moves on them.

mod answers;
mod connection;
mod http;
mod incoming;
mod peers;
mod tls;

pub(crate) use answers::{OfConnection, lasting};
pub(crate) use connection::Written;
pub(crate) use http::serve_http;
pub(crate) use incoming::{Accepting, Incoming};
pub(crate) use tls::{Protocol, Tls, TlsFiles};
