//! Judges every call and counts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::answer::{Answer, Disagreement, Tolerance, agree};
use super::client::ModelFacts;
use super::driver::{Outcome, Sample};
use super::steps::StepBook;

/// The longest latency that is told apart, in microseconds: no call lasts longer than the client's patience, and what
/// falls due behind a stall waits at most as long again.
const LATENCY_US_MAX: u64 = 600_000_000;

/// What an answer is measured against.
#[derive(Clone, Debug, Default)]
pub(super) struct Bar {
    /// Undisturbed answers by number.
    pub references: Vec<Answer>,
    /// A correct answer after this counts as failed; `None`: lateness is not judged.
    pub late_after: Option<Duration>,
}

/// What a call was worth.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// OK, in time, and right as far as it was checked.
    Good,
    /// OK, but not the undisturbed answer.
    Wrong(Disagreement),
    /// OK and right, but too late.
    Late,
    /// An error status.
    Refused(tonic::Code),
    /// No answer within the client's patience.
    Unanswered,
    /// The client had too many calls waiting.
    NotSent,
    /// The client cancelled it: neither good nor failed.
    Cancelled,
}

impl Verdict {
    /// Whether the call failed: not OK, wrong, or late.
    pub(super) fn failed(&self) -> bool {
        !matches!(self, Verdict::Good | Verdict::Cancelled)
    }

    /// The name under which it is counted.
    pub(super) fn name(&self) -> String {
        match self {
            Verdict::Good => "OK".to_owned(),
            Verdict::Wrong(_) => "wrong".to_owned(),
            Verdict::Late => "late".to_owned(),
            Verdict::Refused(code) => code_name(*code),
            Verdict::Unanswered => "unanswered".to_owned(),
            Verdict::NotSent => "not sent".to_owned(),
            Verdict::Cancelled => "cancelled by the client".to_owned(),
        }
    }
}

/// `RESOURCE_EXHAUSTED`: the name of a status code as the gRPC documents spell it.
fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for (index, letter) in format!("{code:?}").chars().enumerate() {
        if letter.is_ascii_uppercase() && index > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Counts of one model's calls.
///
/// Calls are judged by when they were due, throughput is counted by when answers came: both within the window.
#[derive(Clone)]
pub(super) struct Tally {
    /// Calls that fell due.
    pub calls: u64,
    /// Of them, how many failed.
    pub failed: u64,
    /// Of the failed, wrong answers.
    pub wrong: u64,
    /// Of the failed, late answers.
    pub late: u64,
    /// Calls whose answers were compared with the undisturbed ones.
    pub checked: u64,
    /// Calls by [`Verdict::name`].
    pub outcomes: BTreeMap<String, u64>,
    /// Latency in microseconds of the calls that were answered OK, late and wrong ones included.
    pub latency: Histogram<u64>,
    /// Answers that came.
    pub answers: Rates,
    /// Answers that came and were good.
    pub good: Rates,
    /// Tokens of all answers, also outside the window: what the steps' padded tokens compare with.
    pub tokens_ever: u64,
}

/// Amounts that, divided by the window's length, are rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Calls.
    pub calls: u64,
    /// Rows.
    pub rows: u64,
    /// Tokens.
    pub tokens: u64,
}

impl Rates {
    fn add(&mut self, rows: usize, tokens: u64) {
        self.calls += 1;
        self.rows += rows as u64;
        self.tokens += tokens;
    }

    fn merge(&mut self, other: Rates) {
        self.calls += other.calls;
        self.rows += other.rows;
        self.tokens += other.tokens;
    }
}

impl Tally {
    fn new() -> Tally {
        Tally {
            calls: 0,
            failed: 0,
            wrong: 0,
            late: 0,
            checked: 0,
            outcomes: BTreeMap::new(),
            latency: microseconds(),
            answers: Rates::default(),
            good: Rates::default(),
            tokens_ever: 0,
        }
    }

    /// Adds the counts of `other`.
    pub(super) fn merge(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.wrong += other.wrong;
        self.late += other.late;
        self.checked += other.checked;
        for (name, count) in &other.outcomes {
            *self.outcomes.entry(name.clone()).or_default() += count;
        }
        self.latency.add(&other.latency).expect("both histograms have the same bounds");
        self.answers.merge(other.answers);
        self.good.merge(other.good);
        self.tokens_ever += other.tokens_ever;
    }
}

/// An empty histogram of microseconds with three significant digits.
fn microseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are valid")
}

/// Takes the samples of a load.
pub(super) struct Recorder {
    models: Vec<ModelFacts>,
    window: Range<Duration>,
    bar: Bar,
    tallies: Vec<Tally>,
    steps: StepBook,
    send_lag: Histogram<u64>,
    first_wrong: Option<String>,
}

impl Recorder {
    /// Records calls to `models` that fall due (answers: that come) within `window`.
    pub(super) fn new(models: Vec<ModelFacts>, window: Range<Duration>, bar: Bar) -> Recorder {
        let tallies = models.iter().map(|_| Tally::new()).collect();
        Recorder {
            models,
            window,
            bar,
            tallies,
            steps: StepBook::default(),
            send_lag: microseconds(),
            first_wrong: None,
        }
    }

    /// Judges one call and counts it.
    pub(super) fn record(&mut self, sample: &Sample) -> Verdict {
        let verdict = self.judge(sample);
        if let Verdict::Wrong(disagreement) = &verdict {
            let name = &self.models[sample.model].name;
            self.first_wrong.get_or_insert_with(|| format!("model '{name}': {disagreement}"));
        }
        let tally = &mut self.tallies[sample.model];
        if let Outcome::Answered(reply) = &sample.outcome {
            self.steps.enter(sample.model, sample.done, &reply.steps);
            tally.tokens_ever += reply.tokens;
            if self.window.contains(&sample.done) {
                tally.answers.add(sample.rows, reply.tokens);
                if verdict == Verdict::Good {
                    tally.good.add(sample.rows, reply.tokens);
                }
            }
        }
        if !self.window.contains(&sample.intended) {
            return verdict;
        }
        tally.calls += 1;
        tally.failed += u64::from(verdict.failed());
        tally.wrong += u64::from(matches!(verdict, Verdict::Wrong(_)));
        tally.late += u64::from(verdict == Verdict::Late);
        *tally.outcomes.entry(verdict.name()).or_default() += 1;
        if let Outcome::Answered(_) = sample.outcome {
            tally.checked += u64::from(self.bar.undisturbed(sample.reference).is_some());
            tally.latency.saturating_record(micros(sample.latency()));
        }
        self.send_lag.saturating_record(micros(sample.sent.saturating_sub(sample.intended)));
        verdict
    }

    fn judge(&self, sample: &Sample) -> Verdict {
        let reply = match &sample.outcome {
            Outcome::Answered(reply) => reply,
            Outcome::Refused(code) => return Verdict::Refused(*code),
            Outcome::Cancelled => return Verdict::Cancelled,
            Outcome::Unanswered => return Verdict::Unanswered,
            Outcome::NotSent => return Verdict::NotSent,
        };
        let model = &self.models[sample.model];
        if reply.answer.rows.len() != sample.rows {
            return Verdict::Wrong(Disagreement::Rows { expected: sample.rows, found: reply.answer.rows.len() });
        }
        if let Some(undisturbed) = self.bar.undisturbed(sample.reference)
            && let Err(disagreement) = agree(model.task, Tolerance::of(model.dtype), undisturbed, &reply.answer)
        {
            return Verdict::Wrong(disagreement);
        }
        match self.bar.late_after {
            Some(late_after) if sample.latency() > late_after => Verdict::Late,
            _ => Verdict::Good,
        }
    }

    /// The models, in the order of [`Recorder::tallies`].
    pub(super) fn models(&self) -> &[ModelFacts] {
        &self.models
    }

    /// The counts of each model.
    pub(super) fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// The counts of all models together.
    pub(super) fn total(&self) -> Tally {
        let mut total = Tally::new();
        for tally in &self.tallies {
            total.merge(tally);
        }
        total
    }

    /// The steps that replies told of.
    pub(super) fn steps(&self) -> &StepBook {
        &self.steps
    }

    /// Ends the window at this time of the load, if it would have gone on: nothing was sent afterwards.
    pub(super) fn end_window(&mut self, at: Duration) {
        self.window.end = self.window.end.min(at).max(self.window.start);
    }

    /// Seconds in which calls were judged.
    pub(super) fn window_seconds(&self) -> f64 {
        (self.window.end - self.window.start).as_secs_f64()
    }

    /// How late the generator itself sent, in microseconds: when this is not small, the machine is too busy to measure.
    pub(super) fn send_lag(&self) -> &Histogram<u64> {
        &self.send_lag
    }

    /// The first wrong answer, in words.
    pub(super) fn first_wrong(&self) -> Option<&str> {
        self.first_wrong.as_deref()
    }
}

impl Bar {
    fn undisturbed(&self, reference: Option<u32>) -> Option<&Answer> {
        self.references.get(reference? as usize)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::cli::bench::client::Reply;
    use crate::config::{Dtype, Task};

    fn recorder(late_after: Option<u64>) -> Recorder {
        let name = "e".to_owned();
        let model =
            ModelFacts { name, task: Task::Embed, dtype: Dtype::F32, length_max: 128, ready: true, settled: true };
        let references = vec![Answer { rows: vec![vec![1.0, 0.0]] }];
        let bar = Bar { references, late_after: late_after.map(Duration::from_millis) };
        Recorder::new(vec![model], Duration::from_secs(1)..Duration::from_secs(3), bar)
    }

    fn ended(intended: u64, done: u64, reference: Option<u32>, outcome: Outcome) -> Sample {
        let (intended, done) = (Duration::from_millis(intended), Duration::from_millis(done));
        Sample { model: 0, rows: 1, reference, intended, sent: intended, done, outcome }
    }

    fn answer(values: &[f32]) -> Outcome {
        Outcome::Answered(Reply { answer: Answer { rows: vec![values.to_vec()] }, tokens: 7, steps: Vec::new() })
    }

    #[test]
    fn each_way_to_fail_is_told_apart() {
        let mut recorder = recorder(Some(100));
        let mut check = |sample: Sample, name: &str, failed: bool| {
            let verdict = recorder.record(&sample);
            assert_eq!((verdict.name().as_str(), verdict.failed()), (name, failed));
        };
        check(ended(1_000, 1_100, Some(0), answer(&[1.0, 0.0])), "OK", false);
        check(ended(1_000, 1_101, Some(0), answer(&[1.0, 0.0])), "late", true);
        check(ended(1_000, 1_010, Some(0), answer(&[0.0, 1.0])), "wrong", true);
        check(ended(1_000, 1_010, Some(1), answer(&[0.0, 1.0])), "OK", false); // nothing is known of it
        check(ended(1_000, 1_010, None, answer(&[0.0, 1.0])), "OK", false);
        check(ended(1_000, 1_010, None, Outcome::Refused(Code::ResourceExhausted)), "RESOURCE_EXHAUSTED", true);
        check(ended(1_000, 1_010, None, Outcome::Unanswered), "unanswered", true);
        check(ended(1_000, 1_010, None, Outcome::NotSent), "not sent", true);
        check(ended(1_000, 1_010, None, Outcome::Cancelled), "cancelled by the client", false);
        let total = recorder.total();
        assert_eq!((total.calls, total.failed, total.wrong, total.late, total.checked), (9, 5, 1, 1, 3));
        assert_eq!(total.answers, Rates { calls: 5, rows: 5, tokens: 35 });
        assert_eq!(total.good, Rates { calls: 3, rows: 3, tokens: 21 });
        assert_eq!(recorder.first_wrong().unwrap().split(':').next(), Some("model 'e'"));
    }

    #[test]
    fn rows_that_are_missing_are_wrong_without_a_reference() {
        let reply = Reply { answer: Answer { rows: Vec::new() }, tokens: 0, steps: Vec::new() };
        assert_eq!(recorder(None).record(&ended(1_000, 1_001, None, Outcome::Answered(reply))).name(), "wrong");
    }

    /// Goal: warm-up is left out, and a call is judged by when it was due. Method: one call on each side of each edge.
    #[test]
    fn a_window_ends_with_a_load_that_ends_before_it() {
        let ended = |at| {
            let mut recorder = recorder(None);
            recorder.end_window(Duration::from_millis(at));
            recorder.window_seconds()
        };
        assert_eq!([ended(500), ended(1_500), ended(9_000)], [0.0, 0.5, 2.0]);
    }

    #[test]
    fn the_window_decides_what_counts() {
        let mut recorder = recorder(None);
        for (intended, done) in [(999, 1_001), (1_000, 2_999), (2_999, 3_000), (3_000, 3_001)] {
            recorder.record(&ended(intended, done, None, answer(&[1.0, 0.0])));
        }
        let total = recorder.total();
        assert_eq!(total.calls, 2, "due at 1,000 and 2,999");
        assert_eq!(total.answers.calls, 2, "came at 1,001 and 2,999");
        assert_eq!(total.tokens_ever, 28);
        assert_eq!(recorder.window_seconds(), 2.0);
        assert!((1_990_000..2_010_000).contains(&total.latency.max()), "{}", total.latency.max());
    }

    /// Goal: the quantiles are those of the latencies. Method: 1 to 1,000 ms once each.
    #[test]
    fn quantiles_have_three_digits() {
        let mut recorder = recorder(None);
        for latency in 1..=1_000 {
            recorder.record(&ended(1_500, 1_500 + latency, None, answer(&[1.0, 0.0])));
        }
        for (quantile, expected) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
            let found = recorder.total().latency.value_at_quantile(quantile) as f64;
            assert!((found / expected - 1.0).abs() < 0.001, "{quantile}: {found}");
        }
    }

    #[test]
    fn codes_are_spelled_as_grpc_does() {
        assert_eq!(code_name(Code::Ok), "OK");
        assert_eq!(code_name(Code::InvalidArgument), "INVALID_ARGUMENT");
        assert_eq!(code_name(Code::DeadlineExceeded), "DEADLINE_EXCEEDED");
    }
}
