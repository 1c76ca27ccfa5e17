//! What kernels have to know of a step's rows, on the card.

use candle_core::{Device, Result, Tensor};

use super::recordings::Key;
use super::tensors::Address;
use super::tiles::{Room, tiles};
use crate::ops::label::operation;
use crate::ops::{Indices, Rows};

/// Rows on the card, ragged: where each lies, the indices of its positions, and the tiles that attention works in. All in
/// one piece of memory, which is filled by one copy.
pub(crate) struct Layout {
    /// u32: words, positions and types, a `part` each; starts of rows and the end; tiles of four numbers.
    data: Tensor,
    base: Address,
    /// The step's rows. There may be empty ones behind them.
    given: usize,
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// Elements of each of the first three parts.
    part: usize,
    pub(super) tiles: usize,
    /// Whether tiles are long.
    pub(super) long: bool,
    small: bool,
}

impl Layout {
    /// Copies it to the card.
    pub(crate) fn new(rows: &Rows, indices: &Indices, device: &Device) -> Result<Layout> {
        let given = rows.iter().len();
        let (tiles, long) = tiles(rows);
        let room = Room::of(rows.tokens(), given, tiles.len());
        // Parts begin at multiples of 16 bytes.
        let part = room.tokens.next_multiple_of(4);
        let starts = (room.rows + 1).next_multiple_of(4);
        let mut data = Vec::with_capacity(3 * part + starts + 4 * room.tiles);
        for (number, ids) in [&indices.words, &indices.positions, &indices.types].into_iter().enumerate() {
            data.extend_from_slice(ids);
            data.resize((number + 1) * part, 0);
        }
        data.extend(rows.iter().map(|(start, _)| start as u32));
        data.resize(3 * part + room.rows + 1, rows.tokens() as u32);
        data.resize(3 * part + starts, 0);
        data.extend(tiles.iter().flatten());
        // Tiles of no row: nothing is computed.
        data.resize(3 * part + starts + 4 * room.tiles, 0);
        let count = data.len();
        let data = operation("inputs", &[count], || Tensor::from_vec(data, count, device))?;
        let base = super::tensors::address(&data, candle_core::DType::U32)?;
        let Room { tokens, rows, tiles, small } = room;
        Ok(Layout { data, base, given, rows, tokens, part, tiles, long, small })
    }

    /// Tokens that are computed: memory is needed for so many.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Results of the step's rows among those of all rows that are computed, (rows, anything).
    pub(crate) fn results(&self, all: &Tensor) -> Result<Tensor> {
        all.narrow(0, 0, self.given)
    }

    /// What the step's launches depend on beside the model, if it is one to be recorded. `memory` is all that it writes to.
    pub(crate) fn key(&self, memory: &[&Tensor]) -> Result<Option<Key>> {
        if !self.small {
            return Ok(None);
        }
        let addresses = memory.iter().map(|tensor| super::tensors::address(tensor, tensor.dtype()));
        let addresses = std::iter::once(Ok(self.base)).chain(addresses).collect::<Result<Vec<_>>>()?;
        Ok(Some(Key { shape: [self.tokens, self.rows, self.tiles], addresses }))
    }

    /// Of the tables' rows for each token: words, positions, types.
    pub(super) fn ids(&self) -> [Address; 3] {
        [0, 1, 2].map(|part| self.at(part * self.part))
    }

    /// Where each row starts, and where the last one ends.
    pub(super) fn starts(&self) -> Address {
        self.at(3 * self.part)
    }

    /// Each tile's row start, row length, first query, and nothing.
    pub(super) fn tile_list(&self) -> Address {
        self.at(3 * self.part + (self.rows + 1).next_multiple_of(4))
    }

    fn at(&self, element: usize) -> Address {
        debug_assert!(element <= self.data.elem_count());
        self.base + (element * size_of::<u32>()) as Address
    }
}
