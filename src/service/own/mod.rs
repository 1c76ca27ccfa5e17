//! Our own interface, `plimsoll.v1`: typed and batched calls, and the control plane.

mod convert;
mod embed;
mod rerank;
mod classify;
mod token_classify;
mod models;
mod memory;

use std::sync::Arc;

use super::context::Context;

/// All services of `plimsoll.v1`; each is implemented in its own file.
pub(crate) struct Own<E> {
    context: Arc<Context<E>>,
}

impl<E> Own<E> {
    pub(crate) fn new(context: Arc<Context<E>>) -> Own<E> {
        Own { context }
    }
}
