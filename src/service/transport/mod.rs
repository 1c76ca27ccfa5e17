//! Connections: accepted, encrypted where that is configured, and bounded in what they may cost before a call is there.

mod connection;
mod http;
mod incoming;
mod tls;

pub(crate) use http::serve_http;
pub(crate) use incoming::Incoming;
pub(crate) use tls::{Protocol, Tls, TlsFiles};
