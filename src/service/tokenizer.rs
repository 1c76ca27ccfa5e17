//! The way of a call's texts through the tokenizer's threads, and the bound on what waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errors::Problem;
use super::request::{Encoding, row_problem};
use crate::model::{ModelCard, TokenRow};
use crate::tokenize::{TextRow, TokenizerPool};

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

    /// Tokenizes the rows in order. Dropping the future gives up the result.
    pub(crate) async fn encode(
        &self,
        card: &ModelCard,
        texts: Vec<TextRow>,
        encoding: &Encoding,
    ) -> Result<Vec<Arc<TokenRow>>, Problem> {
        let _waiting = self.enter(texts.len() as u64)?;
        let rows = self.pool.encode_batch(card.encoder.clone(), texts, encoding.truncate).await;
        let rows = rows.map_err(|flaw| row_problem(card, encoding.field, flaw.row, flaw.error))?;
        Ok(rows.into_iter().map(Arc::new).collect())
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
