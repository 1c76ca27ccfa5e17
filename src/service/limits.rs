//! Bounds on what clients may ask for. Each names the error at which it is met and what raising it costs.

use std::time::Duration;

use crate::units::Bytes;

/// The limits of the services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest message, in either direction, decompressed. Beyond: OUT_OF_RANGE. Raising it costs host memory for each
    /// call in flight.
    pub message: Bytes,
    /// How long the message of a call may take to come over gRPC, but for streams. Beyond: DEADLINE_EXCEEDED. Raising it
    /// costs host memory for calls whose clients do not go on.
    pub message_time: Duration,
    /// Rows of one call. Beyond: INVALID_ARGUMENT. Raising it lets one caller fill more of the queue at once.
    pub request_rows: u32,
    /// Bytes of one text. Beyond: INVALID_ARGUMENT, before it is tokenized. Raising it costs tokenization time: about
    /// a tenth of a second for each MiB.
    pub text: Bytes,
    /// Rows that wait for the tokenizer. Beyond: RESOURCE_EXHAUSTED. Raising it costs host memory for their texts.
    pub tokenizer_rows: u32,
    /// Bytes of texts that wait for the tokenizer; a message that may be sent has room in any case. Beyond:
    /// RESOURCE_EXHAUSTED. Raising it costs as much host memory.
    pub tokenizer_bytes: Bytes,
    /// Streams of inferences that are open at once, and calls that one connection may have in flight. Beyond:
    /// RESOURCE_EXHAUSTED for a stream; a connection's further calls wait in the client.
    pub streams: u32,
    /// Requests of one stream that are in flight at once. Beyond: the stream is not read until one is answered.
    pub stream_requests: u32,
    /// How long a stream may stay open on which nothing is sent, received or in flight. Beyond: DEADLINE_EXCEEDED.
    /// Raising it costs host memory for clients that have forgotten theirs.
    pub stream_idle: Duration,
    /// Host memory that open streams may hold for the largest messages that each has had. Beyond: RESOURCE_EXHAUSTED
    /// for the stream whose message is larger. Raising it costs as much host memory.
    pub streams_held: Bytes,
    /// How long health says NOT_SERVING before the port is closed, so that load balancers can look elsewhere.
    pub drain_notice: Duration,
    /// How long accepted calls may take to finish after that. What is left then is cut off.
    pub drain_bound: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message: Bytes::mib(64),
            message_time: Duration::from_secs(60),
            request_rows: 1024,
            text: Bytes::mib(1),
            tokenizer_rows: 8192,
            tokenizer_bytes: Bytes::mib(256),
            streams: 1000,
            stream_requests: 64,
            stream_idle: Duration::from_secs(1800),
            streams_held: Bytes::mib(1024),
            drain_notice: Duration::from_millis(500),
            drain_bound: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// The message limit in the type that the transport takes.
    pub(super) fn message_size(&self) -> usize {
        usize::try_from(self.message.get()).unwrap_or(usize::MAX)
    }
}
