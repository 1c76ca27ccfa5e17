//! How a step's rows are cut into tiles of attention, and which steps are rounded up to a shape that comes again.

use super::TILE;
use crate::ops::Rows;

/// Rows from this length on are read fewer times in long tiles: on an H200 6 % less time at 512 tokens, 12 % at 4,096; a
/// mixture of texts of 101 tokens on average takes 27 % more.
const LONG_ROW: usize = 480;

/// Attention works in long tiles where so large a part of a step's tokens is in long rows.
const LONG_PART: f64 = 0.9;

/// Steps of up to so many tokens and rows take their time from launches, not from arithmetic: they are rounded up to few
/// shapes, so that what was queued for one serves the next (`Recordings`). Long rows have tiles of their own.
const SMALL_TOKENS: usize = 448;
const SMALL_ROWS: usize = 16;

/// What a step is computed as. Tokens beyond its rows' belong to no row: they are computed and nobody looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) tokens: usize,
    pub(super) rows: usize,
    pub(super) tiles: usize,
    /// Whether it is one of few.
    pub(super) small: bool,
}

impl Room {
    /// The room for a step of so many tokens in so many rows, which take so many tiles.
    pub(super) fn of(tokens: usize, rows: usize, tiles: usize) -> Room {
        if tokens > SMALL_TOKENS || rows > SMALL_ROWS {
            return Room { tokens, rows, tiles, small: false };
        }
        let tokens = tokens.next_multiple_of(if tokens <= 256 { 32 } else { 64 });
        let rows = rows.next_power_of_two();
        // Each row may begin a tile that it does not fill.
        let most = tokens.div_ceil(TILE) + rows.saturating_sub(1);
        debug_assert!(tiles <= most, "{tiles} tiles of {tokens} tokens in {rows} rows");
        Room { tokens, rows, tiles: most, small: true }
    }
}

/// The tiles of a step (row start, row length, first query, nothing), those of long rows first: the blocks that start last are then short. And whether they are long.
pub(super) fn tiles(rows: &Rows) -> (Vec<[u32; 4]>, bool) {
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
    fn small_steps_share_few_rooms_and_fit_in_them() {
        let rooms: std::collections::BTreeSet<[usize; 3]> = (1..=SMALL_TOKENS)
            .flat_map(|tokens| (1..=SMALL_ROWS.min(tokens)).map(move |rows| (tokens, rows)))
            .map(|(tokens, rows)| {
                // As many tiles as there can be: all rows but one a token longer than a tile, as long as there are tokens.
                let mut lengths = vec![1; rows];
                let mut left = tokens - rows;
                for length in &mut lengths {
                    let more = left.min(TILE);
                    *length += more;
                    left -= more;
                }
                lengths[0] += left;
                let given = Rows::ragged(lengths);
                let room = Room::of(tokens, rows, tiles(&given).0.len());
                assert!(room.small && room.tokens >= tokens && room.tokens < tokens + 64 && room.rows >= rows);
                assert!(room.tiles >= tiles(&given).0.len(), "{room:?}");
                [room.tokens, room.rows, room.tiles]
            })
            .collect();
        assert!(rooms.len() <= 11 * 5, "{} rooms", rooms.len());
        assert_eq!(Room::of(449, 1, 8), Room { tokens: 449, rows: 1, tiles: 8, small: false });
        assert_eq!(Room::of(100, 17, 17), Room { tokens: 100, rows: 17, tiles: 17, small: false });
    }

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
