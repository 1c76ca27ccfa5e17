//! What clients of text-embeddings-inference ask, without the form in which they do.

use super::answered::Answered;
use super::cut::Cut;
use crate::config::Task;
use crate::model::ModelCard;
use crate::scheduler::Priority;
use crate::service::call::Arrival;
use crate::service::context::{Context, Target};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::request::{self, Encoding, Inquiry, Rows};
use crate::service::results::{self, Finish};
use crate::service::spans::{Characters, Span};
use crate::service::tasks::{Labelled, Labelling, Scores};
use crate::tokenize::{Piece, TextRow};
use crate::units::Bytes;

/// Whose answer is wanted, and by when.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// A model's name; empty: the only one for the task.
    pub(crate) model: String,
    pub(crate) arrival: Arrival,
}

/// Rows to embed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    Texts(Vec<String>),
    /// Token ids that the client has made itself: nothing is added, and no prompt is before them.
    Tokens(Vec<Vec<u32>>),
}

/// What to embed.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) inputs: Inputs,
    /// What the protocol calls them.
    pub(crate) field: &'static str,
    pub(crate) cut: Cut,
    /// `None`: the model's usual one, if it has one; empty: none.
    pub(crate) prompt_name: Option<String>,
}

/// What to embed, and how.
#[derive(Clone, Debug)]
pub(crate) struct Embed {
    pub(crate) written: Written,
    /// `None`: as the model's users expect it.
    pub(crate) normalize: Option<bool>,
    /// `None`: all.
    pub(crate) dimensions: Option<u32>,
}

/// Texts, or pairs of them, to label.
#[derive(Clone, Debug)]
pub(crate) struct Predict {
    pub(crate) inputs: Vec<TextRow>,
    pub(crate) cut: Cut,
    pub(crate) scores: Scores,
}

/// Texts whose parts are to be labelled.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// Single ones: a pair is refused.
    pub(crate) inputs: Vec<TextRow>,
    pub(crate) cut: Cut,
    pub(crate) labelling: Labelling,
}

/// Texts to rank for a query.
#[derive(Clone, Debug)]
pub(crate) struct Rerank {
    pub(crate) query: String,
    pub(crate) texts: Vec<String>,
    pub(crate) cut: Cut,
    pub(crate) scores: Scores,
    pub(crate) return_text: bool,
    /// How many of the best are wanted; `None`: all.
    pub(crate) top: Option<u32>,
}

/// One label of a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub(crate) label: String,
    pub(crate) score: f32,
}

/// One text's place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rank {
    pub(crate) index: usize,
    pub(crate) score: f32,
    pub(crate) text: Option<String>,
}

fn single_texts(rows: Vec<TextRow>) -> Result<Vec<String>, Problem> {
    let single = |(number, TextRow { text, pair }): (usize, TextRow)| match pair {
        None => Ok(text),
        Some(_) => {
            let reason = "the model labels tokens of single texts: send a text, not a pair";
            Err(Problem::invalid(format!("inputs[{number}]"), reason))
        }
    };
    rows.into_iter().enumerate().map(single).collect()
}

impl<E: Inference> Context<E> {
    /// An embedding for each text.
    pub(crate) async fn tei_embed(&self, asked: &Asked, ask: Embed) -> Result<Answered<Vec<Vec<f32>>>, Problem> {
        let target = self.target_for(Task::Embed, &asked.model)?;
        let card = &target.definition.card;
        let normalize = ask.normalize.unwrap_or(true);
        if ask.dimensions == Some(0) {
            return Err(Problem::invalid("dimensions", "it is 0: leave it out for all of them"));
        }
        let finish = Finish::new("dimensions", ask.dimensions.unwrap_or(0).into(), card.dimensions, normalize)?;
        let (rows, characters) = self.embeddable(card, ask.written)?;
        let mut served = self.embed(&target, inquiry(rows, asked.arrival), finish).await?;
        let result = std::mem::take(&mut served.answer.rows);
        Ok(self.answered(result, card, asked, characters, &served).await)
    }

    /// The states of each text's tokens.
    pub(crate) async fn tei_embed_all(
        &self,
        asked: &Asked,
        written: Written,
    ) -> Result<Answered<Vec<Vec<Vec<f32>>>>, Problem> {
        let target = self.target_for(Task::Embed, &asked.model)?;
        let card = &target.definition.card;
        let (rows, characters) = self.embeddable(card, written)?;
        let (states, served) = self.embed_states(&target, inquiry(rows, asked.arrival)).await?;
        Ok(self.answered(states, card, asked, characters, &served).await)
    }

    /// The rows for an embedder, and the characters of their texts.
    fn embeddable(&self, card: &ModelCard, written: Written) -> Result<(Rows, u64), Problem> {
        let Written { inputs, field, cut, prompt_name } = written;
        let prompt = request::prompt_named(card, "prompt_name", prompt_name.as_deref())?;
        Ok(match inputs {
            Inputs::Texts(texts) => {
                let characters = count(texts.iter().map(String::as_str));
                (self.texts(field, texts, &prompt, cut.of(card))?, characters)
            }
            Inputs::Tokens(rows) => {
                if prompt_name.is_some_and(|name| !name.is_empty()) {
                    return Err(Problem::invalid("prompt_name", "token ids have no place for a prompt: send texts"));
                }
                // Of ids they are counted as that server does.
                let characters = rows.iter().map(|ids| ids.len() as u64).sum();
                let cut = |ids| cut.ids(ids, card);
                (self.token_rows(card, field, rows.into_iter().map(cut))?, characters)
            }
        })
    }

    /// All labels of each row, the likeliest first.
    pub(crate) async fn tei_predict(
        &self,
        asked: &Asked,
        ask: Predict,
    ) -> Result<Answered<Vec<Vec<Prediction>>>, Problem> {
        let target = self.target_for_one_of(&[Task::Classify, Task::Rerank], &asked.model)?;
        let card = &target.definition.card;
        self.check_rows("inputs", ask.inputs.len())?;
        for (row, TextRow { text, pair }) in ask.inputs.iter().enumerate() {
            let field = || format!("inputs[{row}]");
            match pair {
                None => self.check_text(field, text)?,
                Some(pair) => self.check_pair(field, text, pair)?,
            }
        }
        let texts = ask.inputs.iter().flat_map(|row| [Some(row.text.as_str()), row.pair.as_deref()]);
        let characters = count(texts.flatten());
        let rows = Rows::Texts(ask.inputs, Encoding::new(ask.cut.of(card), "inputs"));
        let served = self.classify(&target, inquiry(rows, asked.arrival), ask.scores).await?;
        let label = |index: usize| card.labels.get(index).cloned().unwrap_or_else(|| format!("LABEL_{index}"));
        let ranked = |scores: &Vec<f32>| {
            let best = results::top(scores, scores.len()).into_iter();
            best.map(|(index, score)| Prediction { label: label(index), score }).collect()
        };
        let result = served.answer.rows.iter().map(ranked).collect();
        Ok(self.answered(result, card, asked, characters, &served).await)
    }

    /// Which model is to predict, by its name from now on, and for what: whole texts or their parts. A reranker is a
    /// classifier with one label, and one that nobody has named predicts where there is no other.
    pub(crate) fn tei_predictor(&self, asked: Asked) -> Result<(Task, Asked), Problem> {
        const CLASSIFIERS: &[Task] = &[Task::Classify, Task::TokenClassify];
        let tasks = match asked.model.is_empty() && !self.names_for(CLASSIFIERS).is_empty() {
            true => CLASSIFIERS,
            false => &[Task::Classify, Task::TokenClassify, Task::Rerank],
        };
        let card = &self.target_for_one_of(tasks, &asked.model)?.definition.card;
        Ok((card.task, Asked { model: card.name.clone(), ..asked }))
    }

    /// The labelled parts of each text, and what stands there.
    pub(crate) async fn tei_label(
        &self,
        asked: &Asked,
        ask: Label,
    ) -> Result<Answered<Vec<Vec<(Span, String)>>>, Problem> {
        let target = self.target_for(Task::TokenClassify, &asked.model)?;
        let texts = single_texts(ask.inputs)?;
        let characters = count(texts.iter().map(String::as_str));
        let rows = self.placed_texts("inputs", texts.clone(), ask.cut.of(&target.definition.card))?;
        let inquiry = inquiry(rows, asked.arrival);
        let Labelled { spans, served, .. } = self.classify_tokens(&target, inquiry, ask.labelling).await?;
        let with_parts = |(text, spans): (&String, Vec<Span>)| {
            let characters = Characters::of(text);
            spans.into_iter().map(|span| (span.clone(), characters.part(&span).to_owned())).collect()
        };
        let result = texts.iter().zip(spans).map(with_parts).collect();
        Ok(self.answered(result, &target.definition.card, asked, characters, &served).await)
    }

    /// The texts' places, the best first.
    pub(crate) async fn tei_rerank(&self, asked: &Asked, ask: Rerank) -> Result<Answered<Vec<Rank>>, Problem> {
        let target = self.target_for(Task::Rerank, &asked.model)?;
        let card = &target.definition.card;
        if ask.top == Some(0) {
            return Err(Problem::invalid("top_n", "it is 0: leave it out for all of them"));
        }
        // The query is a part of every row.
        let of_queries = count([ask.query.as_str()].into_iter()) * ask.texts.len() as u64;
        let characters = of_queries + count(ask.texts.iter().map(String::as_str));
        if ask.return_text {
            let bytes: usize = ask.texts.iter().map(String::len).sum();
            self.check_answer(Bytes::new(bytes as u64))?;
        }
        let mut kept: Vec<Option<String>> = match ask.return_text {
            true => ask.texts.iter().cloned().map(Some).collect(),
            false => vec![None; ask.texts.len()],
        };
        let rows = self.pairs(ask.query, "texts", ask.texts, ask.cut.of(card))?;
        let (mut ranks, served) = self.rerank(&target, inquiry(rows, asked.arrival), ask.scores).await?;
        ranks.truncate(ask.top.map_or(usize::MAX, |top| top as usize));
        let result = ranks.into_iter().map(|(index, score)| Rank { index, score, text: kept[index].take() }).collect();
        Ok(self.answered(result, card, asked, characters, &served).await)
    }

    /// The tokens of a text.
    pub(crate) async fn tei_tokenize(
        &self,
        asked: &Asked,
        text: String,
        special_tokens: bool,
        prompt_name: Option<&str>,
    ) -> Result<Vec<Piece>, Problem> {
        let target = self.any_target(&asked.model)?;
        let card = &target.definition.card;
        self.check_text(|| "inputs".to_owned(), &text)?;
        let prompt = request::prompt_named(card, "prompt_name", prompt_name)?;
        self.tokenizer.describe(card, "inputs", format!("{prompt}{text}"), special_tokens).await
    }

    /// The text of token ids.
    pub(crate) async fn tei_decode(
        &self,
        asked: &Asked,
        ids: Vec<u32>,
        special_tokens: bool,
    ) -> Result<String, Problem> {
        let target = self.any_target(&asked.model)?;
        let (found, allowed) = (ids.len() as u64, self.limits.text.get() / 4);
        if found > allowed {
            let message = format!("a row has {found} ids and may have {allowed}: send it in parts");
            return Err(Problem::invalid("ids", message));
        }
        self.tokenizer.decode(&target.definition.card, "ids", ids, special_tokens).await
    }

    /// The model of this name, whatever its task; an empty name means the only one there is.
    pub(crate) fn any_target(&self, name: &str) -> Result<Target, Problem> {
        if !name.is_empty() {
            return self.target(name);
        }
        let names: Vec<String> = self.engine.statuses().into_iter().map(|status| status.name).collect();
        match names.as_slice() {
            [only] => self.target(only),
            several => Err(Problem::invalid("model", format!("it is empty: name one of {}", several.join(", ")))),
        }
    }
}

fn inquiry(rows: Rows, arrival: Arrival) -> Inquiry {
    Inquiry { rows, priority: Priority::Normal, arrival, deadline: arrival.deadline }
}

fn count<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    texts.map(|text| text.chars().count() as u64).sum()
}
