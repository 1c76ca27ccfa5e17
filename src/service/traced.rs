//! What the engine tells of a request, as the spans of its trace.

use crate::engine::{Answer, Failure, StepFacts};
use crate::telemetry::Outcome;
use crate::telemetry::traces::{CallSpan, StepSpan};

/// Notes how a request ended that was handed to the engine.
pub(crate) fn note(span: &CallSpan, ended: &Result<Answer, Failure>) {
    let outcome = match ended {
        Ok(answer) => return span.note_answered(answer.accepted, answer.steps.iter().map(step)),
        Err(Failure::Rejected(rejection)) => Outcome::Rejected(rejection),
        Err(Failure::Fault(fault)) => Outcome::Faulted(fault),
    };
    let (_, reason) = outcome.words();
    span.note_failed(reason);
}

fn step(facts: &StepFacts) -> StepSpan {
    StepSpan {
        id: facts.id,
        began: facts.began,
        ended: facts.ended,
        batch_rows: facts.batch_rows,
        computed_tokens: facts.computed_tokens,
        reason: facts.reason,
        predicted: facts.predicted,
        peak: facts.peak,
        headroom: facts.headroom,
        rungs: facts.rungs,
    }
}
