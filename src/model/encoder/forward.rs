//! The forward pass.

#[cfg(feature = "cuda")]
use std::cell::RefCell;
use std::rc::Rc;
#[cfg(feature = "cuda")]
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::later::OnItsWay;
use super::later::{Here, KeptStates, Mixed};
use super::variant::Between;
use crate::config::Pooling;
use crate::memory::{Axes, ShapeKind};
#[cfg(feature = "cuda")]
use crate::model::layers::{CardMemory, OnCard};
use crate::model::layers::{Embeddings, FeedForward, Kernels, Linear, Rest, SelfAttention, States, Widths, Workspace};
use crate::model::{Batch, Fault, Later, Model, Output, TokenRow, Wanted};
#[cfg(feature = "cuda")]
use crate::ops::card;
use crate::ops::{Indices, Matrix, Norm, Pick, Picked, Rows, framework, label, pool, pool_plain};

/// A loaded encoder.
pub(crate) struct Encoder {
    pub(super) embeddings: Embeddings,
    /// The row of the table of positions for a text's first token.
    pub(super) first_position: u32,
    pub(super) layers: Vec<(SelfAttention, FeedForward)>,
    pub(super) head: Head,
    pub(super) widths: Widths,
    pub(super) kernels: Kernels,
    pub(super) activations: DType,
    pub(super) axes: Axes,
    pub(super) device: Device,
    /// Small steps as they were queued before.
    #[cfg(feature = "cuda")]
    pub(super) recordings: RefCell<card::Recordings>,
}

/// What becomes of the hidden states.
pub(crate) enum Head {
    /// One vector for each row.
    Pool(Pooling),
    /// Logits of each row.
    Classify(Pooling, Classify),
    /// Logits of each token.
    ClassifyTokens(Classify),
}

/// A classifier of vectors.
pub(crate) struct Classify {
    pub(super) before: Option<Before>,
    pub(super) output: Linear,
}

/// What may come before the last layer.
pub(crate) struct Before {
    pub(super) dense: Linear,
    pub(super) between: Between,
    pub(super) norm: Option<Norm>,
}

impl Before {
    fn forward(&self, states: &Tensor, kernels: Kernels) -> Result<Tensor> {
        let inner = self.between.of(&self.dense.forward(states, kernels)?)?;
        match &self.norm {
            Some(norm) => match kernels {
                Kernels::Fused | Kernels::Plain => norm.plain(&inner),
                Kernels::Framework | Kernels::Card => framework::normalize(norm, &inner),
            },
            None => Ok(inner),
        }
    }
}

impl Classify {
    /// The logits of rows or tokens whose states these are, in f32.
    fn forward(&self, states: &Tensor, kernels: Kernels) -> Result<Tensor> {
        let logits = match &self.before {
            Some(before) => self.output.forward(&before.forward(states, kernels)?, kernels)?,
            None => self.output.forward(states, kernels)?,
        };
        logits.to_dtype(DType::F32)
    }
}

impl Head {
    /// What it needs of the hidden states; `None`: all of them.
    fn pooling(&self) -> Option<Pooling> {
        match self {
            Head::Pool(pooling) | Head::Classify(pooling, _) => Some(*pooling),
            Head::ClassifyTokens(_) => None,
        }
    }
}

impl Model for Encoder {
    fn axes(&self) -> Axes {
        self.axes.clone()
    }

    fn step(&mut self, batch: &Batch) -> std::result::Result<Output, Fault> {
        let Batch::Tokens(rows) = batch;
        for (index, row) in rows.iter().enumerate() {
            self.check(row).map_err(|reason| Fault::Model { message: format!("row {index}: {reason}") })?;
        }
        let lengths = rows.iter().map(|row| row.ids.len()).collect();
        let layout = match self.axes.kind {
            ShapeKind::Padded => Rows::padded(lengths),
            ShapeKind::Ragged | ShapeKind::Generate => Rows::ragged(lengths),
        };
        let indices = label::layer("inputs", None, || collate(rows, &layout, self.first_position));
        let wanted: Vec<Wanted> = rows.iter().map(|row| row.wanted).collect();
        Ok(self.forward(&indices, &layout, &wanted)?)
    }
}

impl Encoder {
    /// Rows come checked; a mistake on the way here must not become a read outside a table.
    fn check(&self, row: &TokenRow) -> std::result::Result<(), &'static str> {
        let tables = &self.embeddings.tables;
        let inside = |ids: &[u32], bound: usize| ids.iter().all(|id| (*id as usize) < bound);
        match () {
            _ if row.ids.is_empty() => Err("it is empty"),
            _ if row.ids.len() > self.axes.extent.max as usize => Err("it is longer than the model allows"),
            _ if !inside(&row.ids, tables.words.rows()) => Err("a token id is outside the vocabulary"),
            _ if !row.types.is_empty() && row.types.len() != row.ids.len() => Err("ids and types differ in number"),
            _ if row.wanted == Wanted::States && !matches!(self.head, Head::Pool(_)) => {
                Err("only embedders tell states")
            }
            _ if !inside(&row.types, tables.types.as_ref().map_or(1, Matrix::rows)) => {
                Err("a type id is outside its table")
            }
            _ => Ok(()),
        }
    }

    fn forward(&self, indices: &Indices, rows: &Rows, wanted: &[Wanted]) -> Result<Output> {
        let work = label::layer("workspace", None, || {
            Workspace::new(self.kernels, self.activations, self.widths, rows, indices, &self.device)
        })?;
        #[cfg(feature = "cuda")]
        if let Workspace::Card(memory) = &work
            && !wanted.contains(&Wanted::States)
            && let Some(pooling) = self.head.pooling()
            && let Some(key) = memory.rest.layout.key(&memory.all())?
        {
            return self.forward_recorded(indices, rows, &work, memory, pooling, key);
        }
        let picked = Picked::new(rows, self.pick(wanted));
        let hidden = self.hidden(indices, &picked, &work)?;
        let rest = work.finish();
        label::layer("head", None, || {
            let usual = self.answer(&hidden, picked.alone(), &rest)?;
            match wanted.contains(&Wanted::States) {
                true => self.with_states(usual, &hidden, rows, wanted, &rest),
                false => Ok(usual),
            }
        })
    }

    /// The positions whose hidden states somebody looks at, as far as these kernels can leave the others out.
    fn pick(&self, wanted: &[Wanted]) -> Pick {
        match (self.kernels, self.head.pooling()) {
            (Kernels::Fused, Some(pooling)) if !wanted.contains(&Wanted::States) => pooling.into(),
            (_, _) => Pick::All,
        }
    }

    /// The last layer's hidden states, of the positions that are picked.
    fn hidden(&self, indices: &Indices, picked: &Picked, work: &Workspace) -> Result<Tensor> {
        let hidden = label::layer("embeddings", None, || self.embeddings.forward(indices, work, &self.device))?;
        let mut states = States::first(hidden);
        let (all, last) = (Picked::new(picked.rows(), Pick::All), self.layers.len() - 1);
        for (index, (attention, feed_forward)) in self.layers.iter().enumerate() {
            let picked = if index == last { picked } else { &all };
            states = label::layer("layer", Some(index), || {
                feed_forward.forward(attention.forward(states, picked, &indices.positions, work)?, work)
            })?;
        }
        Ok(states.normed)
    }

    /// A small step on a card, queued as a whole where one like it was before.
    #[cfg(feature = "cuda")]
    fn forward_recorded(
        &self,
        indices: &Indices,
        rows: &Rows,
        work: &Workspace,
        memory: &CardMemory,
        pooling: Pooling,
        key: card::Key,
    ) -> Result<Output> {
        let OnCard { operations, layout } = &memory.rest;
        let pooled = label::layer("head", None, || card::vectors(layout, &memory.hidden))?;
        self.recordings.borrow_mut().run(operations, key.and(&pooled)?, || {
            let hidden = self.hidden(indices, &Picked::new(rows, Pick::All), work)?;
            card::pool_into(operations, &hidden, layout, pooling, &pooled)
        })?;
        label::layer("head", None, || self.send_pooled(operations, &layout.results(&pooled)?))
    }

    /// What becomes of the last layer's hidden states.
    fn answer(&self, hidden: &Tensor, rows: &Rows, rest: &Rest) -> Result<Output> {
        match rest {
            Rest::None => {}
            #[cfg(feature = "cuda")]
            Rest::Card(card) => return self.answer_on_card(hidden, rows, card),
        }
        let pooled = |pooling: Pooling| match self.kernels {
            Kernels::Plain => pool_plain(hidden, rows, pooling),
            Kernels::Fused | Kernels::Card => pool(hidden, rows, pooling),
            Kernels::Framework => framework::pool(hidden, rows, pooling)?.to_vec2(),
        };
        let vectors = match &self.head {
            Head::Pool(pooling) => pooled(*pooling)?,
            Head::Classify(pooling, classify) => {
                let pooled = match self.kernels {
                    Kernels::Framework => framework::pool(hidden, rows, *pooling)?.to_dtype(self.activations)?,
                    Kernels::Fused | Kernels::Plain | Kernels::Card => Tensor::new(pooled(*pooling)?, &self.device)?,
                };
                classify.forward(&pooled, self.kernels)?.to_vec2()?
            }
            Head::ClassifyTokens(classify) => {
                let labels = classify.forward(hidden, self.kernels)?;
                let (_, count) = labels.dims2()?;
                let flat = labels.flatten_all()?.to_vec1::<f32>()?;
                rows.iter().map(|(start, length)| flat[start * count..][..length * count].to_vec()).collect()
            }
        };
        Ok(Output::Vectors(vectors))
    }

    /// The same where everything is queued, and nobody waits for it yet.
    #[cfg(feature = "cuda")]
    fn answer_on_card(&self, hidden: &Tensor, rows: &Rows, card: &OnCard) -> Result<Output> {
        let OnCard { operations, layout } = card;
        match &self.head {
            Head::Pool(pooling) | Head::Classify(pooling, _) => {
                self.send_pooled(operations, &card::pool(operations, hidden, layout, *pooling)?)
            }
            Head::ClassifyTokens(classify) => {
                // Behind the rows there may be tokens that nobody asked for.
                let logits = classify.forward(&hidden.narrow(0, 0, rows.tokens())?, self.kernels)?;
                let (_, labels) = logits.dims2()?;
                send(operations, &logits, rows.iter().map(|(_, length)| length * labels).collect())
            }
        }
    }

    /// The usual answer, with the states of the rows that want those in their places. They are copied only once the step has
    /// ended where that costs it nothing: the memory of an answer is not the step's.
    fn with_states(
        &self,
        usual: Output,
        hidden: &Tensor,
        rows: &Rows,
        wanted: &[Wanted],
        rest: &Rest,
    ) -> Result<Output> {
        let is_states: Vec<bool> = wanted.iter().map(|wanted| *wanted == Wanted::States).collect();
        let places: Vec<_> = rows.iter().zip(&is_states).filter(|(_, is)| **is).map(|(place, _)| place).collect();
        let states: Rc<dyn Later> = match rest {
            #[cfg(feature = "cuda")]
            Rest::Card(OnCard { operations, .. }) => {
                Rc::new(OnItsWay(card::fetch_states(operations, hidden, &places)?))
            }
            Rest::None => {
                let kept = KeptStates { hidden: hidden.clone(), places };
                match self.device.is_cpu() {
                    true => Rc::new(kept),
                    false => Rc::new(Here(kept.copied()?)),
                }
            }
        };
        Ok(Output::Later(Rc::new(Mixed { usual, states, is_states })))
    }

    /// Sends what becomes of pooled states in f32 to the host.
    #[cfg(feature = "cuda")]
    fn send_pooled(&self, operations: &Arc<card::Operations>, pooled: &Tensor) -> Result<Output> {
        let vectors = match &self.head {
            Head::Pool(_) | Head::ClassifyTokens(_) => pooled.clone(),
            Head::Classify(_, classify) => classify.forward(&pooled.to_dtype(self.activations)?, self.kernels)?,
        };
        let (rows, width) = vectors.dims2()?;
        send(operations, &vectors, vec![width; rows])
    }
}

/// Sends values in f32 to the host, so many of them for each row.
#[cfg(feature = "cuda")]
fn send(operations: &Arc<card::Operations>, values: &Tensor, of_rows: Vec<usize>) -> Result<Output> {
    Ok(Output::Later(Rc::new(OnItsWay(card::fetch(operations, values, of_rows)?))))
}

/// The rows' indices, each row's from its start on; its positions are counted from `first_position`. What is padding has
/// index 0 in all tables: it is computed and nobody looks at it.
fn collate(rows: &[std::sync::Arc<TokenRow>], layout: &Rows, first_position: u32) -> Indices {
    let zeros = || vec![0; layout.tokens()];
    let mut indices = Indices { words: zeros(), positions: zeros(), types: zeros() };
    for (row, (start, length)) in rows.iter().zip(layout.iter()) {
        indices.words[start..start + length].copy_from_slice(&row.ids);
        for (position, index) in indices.positions[start..start + length].iter_mut().enumerate() {
            *index = first_position + position as u32;
        }
        if !row.types.is_empty() {
            indices.types[start..start + length].copy_from_slice(&row.types);
        }
    }
    indices
}
