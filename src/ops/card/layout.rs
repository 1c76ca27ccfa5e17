//! What kernels have to know of a step's rows, on the card.

use candle_core::{Device, Result, Tensor};

use super::TILE;
use super::tensors::Address;
use crate::ops::label::operation;
use crate::ops::{Indices, Rows};

/// Rows from this length on are read fewer times in long tiles: on an H200 6 % less time at 512 tokens, 12 % at 4,096; a
/// mixture of texts of 101 tokens on average takes 27 % more.
const LONG_ROW: usize = 480;

/// Attention works in long tiles where so large a part of a step's tokens is in long rows.
const LONG_PART: f64 = 0.9;

/// Rows on the card, ragged: where each lies, the indices of its positions, and the tiles that attention works in. All in
/// one piece of memory, which is filled by one copy.
pub(crate) struct Layout {
    /// u32: words, positions and types, a `part` each; starts of rows and the end; tiles of four numbers.
    data: Tensor,
    base: Address,
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// Elements of each of the first three parts.
    part: usize,
    pub(super) tiles: usize,
    /// Whether tiles are long.
    pub(super) long: bool,
}

impl Layout {
    /// Copies it to the card.
    pub(crate) fn new(rows: &Rows, indices: &Indices, device: &Device) -> Result<Layout> {
        let tokens = rows.tokens();
        let (tiles, long) = tiles(rows);
        // Parts begin at multiples of 16 bytes.
        let part = tokens.next_multiple_of(4);
        let starts = (rows.iter().len() + 1).next_multiple_of(4);
        let mut data = Vec::with_capacity(3 * part + starts + 4 * tiles.len());
        for (number, ids) in [&indices.words, &indices.positions, &indices.types].into_iter().enumerate() {
            data.extend_from_slice(ids);
            data.resize((number + 1) * part, 0);
        }
        data.extend(rows.iter().map(|(start, _)| start as u32));
        data.push(tokens as u32);
        data.resize(3 * part + starts, 0);
        data.extend(tiles.iter().flatten());
        let count = data.len();
        let data = operation("inputs", &[count], || Tensor::from_vec(data, count, device))?;
        let base = super::tensors::address(&data, candle_core::DType::U32)?;
        Ok(Layout { data, base, rows: rows.iter().len(), tokens, part, tiles: tiles.len(), long })
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

/// The tiles of a step, those of long rows first: the blocks that start last are then short. And whether they are long.
fn tiles(rows: &Rows) -> (Vec<[u32; 4]>, bool) {
    let in_long_rows: usize = rows.iter().map(|(_, length)| length).filter(|length| *length >= LONG_ROW).sum();
    let long = in_long_rows as f64 > LONG_PART * rows.tokens() as f64;
    let queries = if long { 2 * TILE } else { TILE };
    let mut by_length: Vec<(usize, usize)> = rows.iter().collect();
    by_length.sort_unstable_by_key(|(start, length)| (std::cmp::Reverse(*length), *start));
    let of_row = |(start, length): (usize, usize)| {
        (0..length).step_by(queries).map(move |first| [start as u32, length as u32, first as u32, 0])
    };
    (by_length.into_iter().flat_map(of_row).collect(), long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_is_in_one_tile_and_long_rows_come_first() {
        let check = |lengths: &[usize], expected: &[[u32; 4]], long| {
            assert_eq!(tiles(&Rows::ragged(lengths.to_vec())), (expected.to_vec(), long), "{lengths:?}");
        };
        check(&[], &[], false);
        check(&[3, 0, 64], &[[3, 64, 0, 0], [0, 3, 0, 0]], false);
        check(&[65, 1], &[[0, 65, 0, 0], [0, 65, 64, 0], [65, 1, 0, 0]], false);
        check(&[10, 129], &[[10, 129, 0, 0], [10, 129, 64, 0], [10, 129, 128, 0], [0, 10, 0, 0]], false);
        let long: Vec<[u32; 4]> = [0, 128, 256, 384].map(|first| [1, 512, first, 0]).into();
        check(&[1, 512], &[long, vec![[0, 1, 0, 0]]].concat(), true);
    }
}
