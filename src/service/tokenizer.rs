//! The way of a call's texts through the tokenizer's threads, and the bounds on what waits for them.

use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errors::Problem;
use super::limits::Limits;
use super::request::{Encoding, row_problem};
use crate::model::{ModelCard, TokenRow};
use crate::tokenize::{Piece, Place, RowError, TextRow, TokenizerPool};

/// The tokenizer's threads with a bounded waiting room. Calls beyond the bounds are refused: their texts would be host
/// memory that no queue counts.
pub(crate) struct Tokenizer {
    pool: TokenizerPool,
    rows: Room,
    bytes: Room,
}

impl Tokenizer {
    /// One thread for each core.
    ///
    /// # Errors
    /// That of the operating system when it gives no threads.
    pub(crate) fn new(limits: &Limits) -> Result<Tokenizer, std::io::Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Whatever a message may hold has room where nothing else waits.
        let bytes = limits.tokenizer_bytes.max(limits.message).get();
        Ok(Tokenizer {
            pool: TokenizerPool::new(cores)?,
            rows: Room::new("rows", u64::from(limits.tokenizer_rows)),
            bytes: Room::new("bytes", bytes),
        })
    }

    /// Tokenizes the rows in order, and says where their tokens are if that is wanted. Dropping the future gives up the
    /// result.
    pub(crate) async fn encode(
        &self,
        card: &ModelCard,
        texts: Vec<TextRow>,
        encoding: &Encoding,
    ) -> Result<(Vec<Arc<TokenRow>>, Vec<Vec<Place>>), Problem> {
        let bytes = texts.iter().map(|row| row.text.len() + row.pair.as_ref().map_or(0, String::len)).sum();
        let _waiting = self.enter(texts.len(), bytes)?;
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

    /// Tokenizes the pairs of a query with texts, in the order of those. Dropping the future gives up the result.
    pub(crate) async fn encode_pairs(
        &self,
        card: &ModelCard,
        query: String,
        texts: Vec<String>,
        encoding: &Encoding,
    ) -> Result<Vec<Arc<TokenRow>>, Problem> {
        let bytes = once(&query).chain(&texts).map(String::len).sum();
        let _waiting = self.enter(texts.len(), bytes)?;
        let Encoding { truncate, field, .. } = *encoding;
        let problem = |flaw: RowError| row_problem(card, field, flaw.row, flaw.error);
        let rows = self.pool.encode_pairs(card.encoder.clone(), query, texts, truncate).await.map_err(problem)?;
        Ok(rows.into_iter().map(Arc::new).collect())
    }

    /// The tokens of a text, for people.
    pub(crate) async fn describe(
        &self,
        card: &ModelCard,
        field: &str,
        text: String,
        special_tokens: bool,
    ) -> Result<Vec<Piece>, Problem> {
        let _waiting = self.enter(1, text.len())?;
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
        let bytes = ids.len() * size_of::<u32>();
        let _waiting = self.enter(1, bytes)?;
        let encoder = card.encoder.clone();
        let text = self.pool.run(bytes, move || encoder.decode(&ids, special_tokens)).await;
        text.ok_or(Problem::Panicked)?.map_err(|error| row_problem(card, field, 0, error))
    }

    /// How many texts are tokenized at once.
    pub(crate) fn workers(&self) -> usize {
        self.pool.threads()
    }

    /// The places of a call's rows and of their bytes.
    fn enter(&self, rows: usize, bytes: usize) -> Result<[Waiting<'_>; 2], Problem> {
        Ok([self.rows.enter(rows as u64)?, self.bytes.enter(bytes as u64)?])
    }
}

/// How much of something waits, and how much may.
struct Room {
    unit: &'static str,
    taken: AtomicU64,
    most: u64,
}

impl Room {
    fn new(unit: &'static str, most: u64) -> Room {
        Room { unit, taken: AtomicU64::new(0), most }
    }

    fn enter(&self, asked: u64) -> Result<Waiting<'_>, Problem> {
        let waiting = self.taken.fetch_add(asked, Ordering::Relaxed);
        let entered = Waiting { room: self, asked };
        if waiting.saturating_add(asked) > self.most {
            drop(entered);
            return Err(Problem::TokenizerFull { unit: self.unit, waiting, asked, limit: self.most });
        }
        Ok(entered)
    }
}

/// What is counted until this is dropped.
struct Waiting<'a> {
    room: &'a Room,
    asked: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.asked, Ordering::Relaxed);
    }
}
