//! The way of a call's texts through the tokenizer's threads, and the bound on what waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errors::Problem;
use super::request::{Encoding, row_problem};
use crate::model::{ModelCard, TokenRow};
use crate::tokenize::{Piece, Place, RowError, TextRow, TokenizerPool};

/// The tokenizer's threads with a bounded waiting room. Calls beyond the bound are refused: their texts would be host
/// memory that no queue counts.
pub(crate) struct Tokenizer {
    pool: TokenizerPool,
    rows: AtomicU64,
    rows_max: u64,
}

impl Tokenizer {
    /// One thread for each core.
    ///
    /// # Errors
    /// That of the operating system when it gives no threads.
    pub(crate) fn new(rows_max: u32) -> Result<Tokenizer, std::io::Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Tokenizer { pool: TokenizerPool::new(cores)?, rows: AtomicU64::new(0), rows_max: u64::from(rows_max) })
    }

    /// Tokenizes the rows in order, and says where their tokens are if that is wanted. Dropping the future gives up the
    /// result.
    pub(crate) async fn encode(
        &self,
        card: &ModelCard,
        texts: Vec<TextRow>,
        encoding: &Encoding,
    ) -> Result<(Vec<Arc<TokenRow>>, Vec<Vec<Place>>), Problem> {
        let _waiting = self.enter(texts.len() as u64)?;
        let Encoding { truncate, field, placed } = *encoding;
        let problem = |flaw: RowError| row_problem(card, field, flaw.row, flaw.error);
        let encoder = card.encoder.clone();
        if placed {
            let rows = self.pool.encode_batch_placed(encoder, texts, truncate).await.map_err(problem)?;
            return Ok(rows.into_iter().map(|(row, places)| (Arc::new(row), places)).unzip());
        }
        let rows = self.pool.encode_batch(encoder, texts, truncate).await.map_err(problem)?;
        Ok((rows.into_iter().map(Arc::new).collect(), Vec::new()))
    }

    /// The tokens of a text, for people.
    pub(crate) async fn describe(
        &self,
        card: &ModelCard,
        field: &str,
        text: String,
        special_tokens: bool,
    ) -> Result<Vec<Piece>, Problem> {
        let _waiting = self.enter(1)?;
        let encoder = card.encoder.clone();
        let pieces = self.pool.run(text.len(), move || encoder.describe(&text, special_tokens)).await;
        pieces.ok_or(Problem::Panicked)?.map_err(|error| row_problem(card, field, 0, error))
    }

    /// The text of token ids.
    pub(crate) async fn decode(
        &self,
        card: &ModelCard,
        field: &str,
        ids: Vec<u32>,
        special_tokens: bool,
    ) -> Result<String, Problem> {
        let _waiting = self.enter(1)?;
        let encoder = card.encoder.clone();
        let bytes = ids.len() * size_of::<u32>();
        let text = self.pool.run(bytes, move || encoder.decode(&ids, special_tokens)).await;
        text.ok_or(Problem::Panicked)?.map_err(|error| row_problem(card, field, 0, error))
    }

    /// How many texts are tokenized at once.
    pub(crate) fn workers(&self) -> usize {
        self.pool.threads()
    }

    fn enter(&self, asked: u64) -> Result<Waiting<'_>, Problem> {
        let waiting = self.rows.fetch_add(asked, Ordering::Relaxed);
        let entered = Waiting { rows: &self.rows, asked };
        if waiting.saturating_add(asked) > self.rows_max {
            drop(entered);
            return Err(Problem::TokenizerFull { waiting, asked, limit: self.rows_max });
        }
        Ok(entered)
    }
}

/// Rows that are counted until this is dropped.
struct Waiting<'a> {
    rows: &'a AtomicU64,
    asked: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.rows.fetch_sub(self.asked, Ordering::Relaxed);
    }
}
