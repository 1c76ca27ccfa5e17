//! A request after decoding: checked rows for one model, on their way through the tokenizer to the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout_at;

use super::call::Arrival;
use super::context::{Context, Target};
use super::errors::Problem;
use super::port::Inference;
use super::traced;
use crate::admission::{LateAt, Rejection, TooLarge};
use crate::config::Task;
use crate::engine::{Answer, Submission};
use crate::model::{ModelCard, TokenRow, Wanted};
use crate::scheduler::Priority;
use crate::tokenize::{Place, TextRow, TokenizeError, Truncate};
use crate::units::Bytes;

/// How texts become tokens, and how the wire names them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoding {
    /// What to do with a text that is too long.
    pub(crate) truncate: Truncate,
    /// The field that a bad row is named by: row 3 of `texts` is `texts[3]`.
    pub(crate) field: &'static str,
    /// Whether it has to be known where the tokens are in the texts.
    pub(crate) placed: bool,
}

impl Encoding {
    /// Of texts whose answers are about them as a whole.
    pub(crate) fn new(truncate: Truncate, field: &'static str) -> Encoding {
        Encoding { truncate, field, placed: false }
    }
}

/// The rows of a request.
#[derive(Clone, Debug)]
pub(crate) enum Rows {
    Texts(Vec<TextRow>, Encoding),
    /// A query and the texts that each are a pair with it.
    Pairs {
        query: String,
        texts: Vec<String>,
        encoding: Encoding,
    },
    Tokens(Vec<Arc<TokenRow>>),
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        match self {
            Rows::Texts(texts, _) => texts.len(),
            Rows::Pairs { texts, .. } => texts.len(),
            Rows::Tokens(rows) => rows.len(),
        }
    }
}

/// Everything that a call asks of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Inquiry {
    pub(crate) rows: Rows,
    pub(crate) priority: Priority,
    pub(crate) arrival: Arrival,
    /// The call's deadline, or the request's own if that is earlier.
    pub(crate) deadline: Option<Instant>,
}

/// An answer, and what is known of its way here.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) answer: Answer,
    /// Tokens of each row.
    pub(crate) tokens: Vec<u32>,
    /// Where they are in the texts of the rows, if that was asked for; otherwise empty.
    pub(crate) places: Vec<Vec<Place>>,
    pub(crate) tokenize: Duration,
}

impl Served {
    /// Microseconds on the device of all steps that had rows of it.
    pub(crate) fn compute_us(&self) -> u64 {
        self.answer.steps.iter().map(|step| step.compute.get()).fold(0, u64::saturating_add)
    }
}

impl<E: Inference> Context<E> {
    /// Tokenizes and runs a request.
    pub(crate) async fn run(&self, target: &Target, inquiry: Inquiry) -> Result<Served, Problem> {
        self.run_for(Wanted::Usual, target, inquiry).await
    }

    /// The same for this of every row.
    pub(crate) async fn run_for(&self, wanted: Wanted, target: &Target, inquiry: Inquiry) -> Result<Served, Problem> {
        let Inquiry { rows, priority, arrival, deadline } = inquiry;
        let name = &target.definition.card.name;
        let late = |_| {
            let waited = arrival.at.elapsed().into();
            Problem::rejected(name, Rejection::Late { at: LateAt::Admission, waited })
        };
        let call_span = self.traces.current();
        if let Some(span) = &call_span {
            span.note_rows(name, rows.len());
        }
        let has_texts = !matches!(rows, Rows::Tokens(_));
        let started = Instant::now();
        let card = &target.definition.card;
        let encoded = async {
            match rows {
                Rows::Tokens(rows) => Ok((rows, Vec::new())),
                Rows::Texts(texts, encoding) => self.tokenizer.encode(card, texts, &encoding).await,
                Rows::Pairs { query, texts, encoding } => {
                    Ok((self.tokenizer.encode_pairs(card, query, texts, &encoding).await?, Vec::new()))
                }
            }
        };
        let (mut rows, places) = match deadline.filter(|_| has_texts) {
            None => encoded.await?,
            Some(deadline) => timeout_at(deadline.into(), encoded).await.map_err(late)??,
        };
        let tokenize = started.elapsed();
        let tokens: Vec<u32> = rows.iter().map(|row| row.ids.len() as u32).collect();
        let tokens_of_all = tokens.iter().copied().map(u64::from).sum::<u64>();
        if let Some(span) = &call_span {
            span.note_tokens(tokens_of_all);
            if has_texts {
                span.note_tokenized(started, started + tokenize);
            }
        }
        if wanted != Wanted::Usual {
            rows.iter_mut().for_each(|row| Arc::make_mut(row).wanted = wanted);
        }
        if target.definition.card.task == Task::TokenClassify || wanted == Wanted::States {
            // So many values are held until the answer is written.
            self.check_answer(Bytes::new(tokens_of_all) * u64::from(target.definition.card.dimensions) * 4)?;
        }
        let submission = Submission { model: target.registered.id, rows, deadline, priority };
        let answer = self.engine.infer(submission).await;
        if let Some(span) = &call_span {
            traced::note(span, &answer);
        }
        let answer = answer.map_err(|failure| Problem::Failed { model: name.clone(), failure })?;
        Ok(Served { answer, tokens, places, tokenize })
    }

    /// Refuses no rows and too many.
    pub(crate) fn check_rows(&self, field: &str, rows: usize) -> Result<(), Problem> {
        let possible = self.limits.request_rows;
        if rows == 0 {
            return Err(Problem::empty(field, "it has no rows: send at least one"));
        }
        if rows > possible as usize {
            return Err(Problem::invalid(
                field,
                format!("it has {rows} rows and may have {possible}: send it in parts"),
            ));
        }
        Ok(())
    }

    /// Refuses a text that is empty or too large to be worth tokenizing.
    pub(crate) fn check_text(&self, field: impl Fn() -> String, text: &str) -> Result<(), Problem> {
        if text.is_empty() {
            return Err(Problem::empty(field(), "the text is empty"));
        }
        self.check_size(field, text)
    }

    /// The same for a pair of them, of which one may be empty.
    pub(crate) fn check_pair(&self, field: impl Fn() -> String, first: &str, second: &str) -> Result<(), Problem> {
        if first.is_empty() && second.is_empty() {
            return Err(Problem::empty(field(), "both texts of the pair are empty"));
        }
        self.check_size(&field, first)?;
        self.check_size(field, second)
    }

    fn check_size(&self, field: impl Fn() -> String, text: &str) -> Result<(), Problem> {
        let (found, allowed) = (text.len() as u64, self.limits.text.get());
        // Not rounded: one byte too many would look like none.
        if found > allowed {
            return Err(Problem::invalid(field(), format!("the text has {found} bytes and may have {allowed}")));
        }
        Ok(())
    }
}

/// Checks row `row` of token ids that a client has made itself.
pub(crate) fn check_tokens(
    card: &ModelCard,
    field: &str,
    row: usize,
    tokens: TokenRow,
) -> Result<Arc<TokenRow>, Problem> {
    card.encoder.checked(tokens).map(Arc::new).map_err(|error| row_problem(card, field, row, error))
}

/// What is wrong with row `row` of the field `field`.
pub(crate) fn row_problem(card: &ModelCard, field: &str, row: usize, error: TokenizeError) -> Problem {
    match error {
        TokenizeError::TooLong { tokens, allowed } => {
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let length = TooLarge::Length { row: count(row), needed: count(tokens), possible: count(allowed) };
            Problem::rejected(&card.name, Rejection::TooLarge(length))
        }
        TokenizeError::Failed { reason } => {
            // The reason may hold a piece of the text, which no log may.
            tracing::error!(model = card.name, row, reason_bytes = reason.len(), "the tokenizer failed");
            Problem::Panicked
        }
        error @ TokenizeError::Empty => Problem::empty(format!("{field}[{row}]"), error.to_string()),
        error => Problem::invalid(format!("{field}[{row}]"), error.to_string()),
    }
}

/// The prompt of this name; an empty name means the model's default, which may be none.
pub(crate) fn prompt(card: &ModelCard, field: &str, name: &str) -> Result<String, Problem> {
    prompt_named(card, field, Some(name).filter(|name| !name.is_empty()))
}

/// The same where a protocol tells no name, which means the model's default, from an empty one, which means none.
pub(crate) fn prompt_named(card: &ModelCard, field: &str, name: Option<&str>) -> Result<String, Problem> {
    let name = name.or(card.default_prompt.as_deref()).unwrap_or_default();
    if name.is_empty() {
        return Ok(String::new());
    }
    card.prompts.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = card.prompts.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Problem::invalid(field, format!("model '{}' has no prompt '{name}'; there are: {known}", card.name))
    })
}
