//! The services over a real connection, with an engine that does what a test wants.

mod fake;
mod harness;
mod http;
mod http_clients;

mod infer;
mod invalid;
mod about;
mod own;
mod deadlines;
mod overload;
mod messages;
mod streams;
mod traces;
mod tei;
mod drain;
mod rest;
mod compressed;
mod routes;
mod of_tokens;
mod secured;
mod access;
mod pages;
mod tls;
