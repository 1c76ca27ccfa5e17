//! What a call has taken.

use super::ask::Asked;
use crate::model::ModelCard;
use crate::service::context::Context;
use crate::service::port::Inference;
use crate::service::request::Served;

/// Numbers of nanoseconds, characters and tokens of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) characters: u64,
    pub(crate) tokens: u64,
    pub(crate) total_ns: u64,
    pub(crate) tokenize_ns: u64,
    pub(crate) queue_ns: u64,
    pub(crate) compute_ns: u64,
    /// The kind of the device.
    pub(crate) device: &'static str,
}

/// An answer and what it took.
pub(crate) struct Answered<T> {
    pub(crate) result: T,
    /// The model that answered.
    pub(crate) model: String,
    pub(crate) spent: Spent,
}

impl<E: Inference> Context<E> {
    pub(super) async fn answered<T>(
        &self,
        result: T,
        card: &ModelCard,
        asked: &Asked,
        characters: u64,
        served: &Served,
    ) -> Answered<T> {
        let ns = |us: u64| us.saturating_mul(1000);
        let device = self.device_kind().await;
        let spent = Spent {
            characters,
            tokens: served.tokens.iter().map(|tokens| u64::from(*tokens)).sum(),
            total_ns: asked.arrival.at.elapsed().as_nanos() as u64,
            tokenize_ns: served.tokenize.as_nanos() as u64,
            queue_ns: ns(served.answer.queued.get()),
            compute_ns: ns(served.compute_us()),
            device,
        };
        Answered { result, model: card.name.clone(), spent }
    }
}
