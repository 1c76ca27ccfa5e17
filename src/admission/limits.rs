//! The limits that a request is held against.

use crate::units::Bytes;

/// What one request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Rows of one request. Raising it lets one client hold more of the queue with a single call.
    pub rows_max: u32,
    /// Tokens of a row, special ones included: what the model can compute.
    pub length_max: u32,
}

/// How much may wait for one model. A request is admitted whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Rows that wait for the device.
    pub rows: u64,
    /// Tokens of those rows.
    pub tokens: u64,
    /// Host memory of all requests that are not answered yet.
    pub host_bytes: Bytes,
}

impl Default for QueueLimits {
    /// 8,192 rows, 4 Mi tokens, 256 MiB. Raising them costs host memory and lets the wait grow; lowering them refuses
    /// bursts that would have been served in time.
    fn default() -> Self {
        QueueLimits { rows: 8_192, tokens: 4 << 20, host_bytes: Bytes::mib(256) }
    }
}
