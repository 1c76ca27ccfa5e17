//! What `build.rs` makes of `proto/`: messages, clients and servers.

/// The Open Inference Protocol with its extensions.
#[allow(missing_docs, clippy::all)]
pub mod inference {
    tonic::include_proto!("inference");
}

/// Our own interface.
#[allow(missing_docs, clippy::all)]
pub mod plimsoll {
    tonic::include_proto!("plimsoll.v1");
}

/// The interface of text-embeddings-inference.
#[allow(missing_docs, clippy::all)]
pub mod tei {
    tonic::include_proto!("tei.v1");
}

/// The descriptors of all of them, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
