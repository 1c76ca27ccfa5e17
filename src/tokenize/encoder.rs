//! One model's tokenizer.

use tokenizers::{Encoding, Token, Tokenizer, TruncationDirection};

use super::charsmap;
use super::error::{RowError, TokenizeError};
use super::place::{self, Place};
use super::words::WholeWords;
use crate::config::Truncate;
use crate::model::TokenRow;

/// How many times as fast as the library ASCII texts are where whole words are looked up: English prose, special tokens put
/// around it.
const WORDS_GAIN: usize = 8;

/// The text of one row: alone, or a pair such as query and document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRow {
    /// The text, or the first of the two.
    pub text: String,
    /// The second.
    pub pair: Option<String>,
}

/// The first part of pairs, taken apart and not longer than there is room for.
#[derive(Clone, Debug)]
pub struct FirstPart {
    pieces: Encoding,
    /// Pieces that it had.
    length: usize,
}

impl From<Encoding> for FirstPart {
    fn from(pieces: Encoding) -> FirstPart {
        FirstPart { length: pieces.len(), pieces }
    }
}

/// A token of a text, for people to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its id.
    pub id: u32,
    /// The part of the text that it stands for; the name of a special token.
    pub text: String,
    /// The bytes of the text, from the first to behind the last; `None` for special tokens.
    pub place: Option<(usize, usize)>,
}

/// Turns text into a model's tokens. Shared by all threads; encoding takes no lock of ours.
///
/// Padding and truncation that tokenizer.json asks for are switched off: rows are padded, if at all, to their step, and
/// cut to this model's longest length. The text's offsets are computed where they are asked for.
pub struct TextEncoder {
    tokenizer: Tokenizer,
    /// Where the tokenizer is of the kind.
    words: Option<WholeWords>,
    length_max: usize,
    vocabulary: u32,
    types: u32,
    /// Special tokens around a text, and around a pair.
    special: [usize; 2],
}

impl TextEncoder {
    /// The tokenizer in `json` for a model that takes `length_max` tokens with ids below `vocabulary` and types below
    /// `types`.
    ///
    /// # Errors
    /// A sentence when it is no tokenizer, or one that does not fit the model.
    pub fn new(json: &[u8], length_max: u32, vocabulary: u32, types: u32) -> Result<TextEncoder, String> {
        // The library trusts some of what a file says, such as that a merge's second part is longer than its prefix.
        let read = || TextEncoder::read(json, length_max, vocabulary, types);
        let read = std::panic::catch_unwind(read).unwrap_or_else(|_| Err("the tokenizers library panics on it".into()));
        // It also cuts that part at the prefix's length, wherever in a character that is, and says it in its error.
        read.map_err(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    fn read(json: &[u8], length_max: u32, vocabulary: u32, types: u32) -> Result<TextEncoder, String> {
        charsmap::check(json)?;
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        let last = tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
        if let Some((token, id)) = last.filter(|(_, id)| *id >= vocabulary) {
            return Err(format!("the token '{token}' with id {id}, where the model has {vocabulary} embeddings"));
        }
        let special = [false, true].map(|pair| {
            tokenizer.get_post_processor().map_or(0, |post| tokenizers::PostProcessor::added_tokens(post, pair))
        });
        let length_max = length_max as usize;
        // A template may put more of them around a text than around a pair.
        let most = special[0].max(special[1]);
        if most >= length_max {
            return Err(format!("{most} special tokens, which leave no room in {length_max} tokens"));
        }
        let words = WholeWords::of(&tokenizer);
        Ok(TextEncoder { tokenizer, words, length_max, vocabulary, types, special })
    }

    /// Longest row in tokens, special ones included.
    pub fn length_max(&self) -> usize {
        self.length_max
    }

    /// The tokens of a text, or of a pair with type 1 for its second part, if the model has types. An empty text is its
    /// special tokens. Where both parts of a pair have to give way the longer does, token by token, until they are
    /// equally long.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] without truncation, [`TokenizeError::Empty`], [`TokenizeError::Failed`].
    pub fn encode(&self, text: &str, pair: Option<&str>, truncate: Truncate) -> Result<TokenRow, TokenizeError> {
        let second = pair.map(|text| self.pieces(text)).transpose()?;
        self.row(&self.finished(self.pieces(text)?, second, truncate)?)
    }

    /// A text's pieces, of which only the ids are said.
    fn pieces(&self, text: &str) -> Result<Encoding, TokenizeError> {
        let Some(words) = &self.words else { return self.tokenizer.encode_fast(text, false).map_err(failed) };
        let ids = words.encode(&self.tokenizer, text).map_err(failed)?;
        let tokens = ids.into_iter().map(|id| Token { id, value: String::new(), offsets: (0, 0) });
        Ok(Encoding::from_tokens(tokens.collect(), 0))
    }

    /// The tokens of a text, and where each of them is in it.
    ///
    /// # Errors
    /// Those of [`TextEncoder::encode`].
    pub fn encode_placed(&self, text: &str, truncate: Truncate) -> Result<(TokenRow, Vec<Place>), TokenizeError> {
        let pieces = self.tokenizer.encode_char_offsets(text, false).map_err(failed)?;
        let encoding = self.finished(pieces, None, truncate)?;
        Ok((self.row(&encoding)?, place::of(&encoding)))
    }

    /// Takes apart the first part of many pairs.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`].
    pub fn first_part(&self, text: &str, truncate: Truncate) -> Result<FirstPart, TokenizeError> {
        let mut pieces = self.pieces(text)?;
        let length = pieces.len();
        // More than there is room for is in none of the pairs; without truncation none of them is good.
        if let Some(direction) = direction(truncate) {
            cut(&mut pieces, self.length_max - self.special[1], direction);
        }
        Ok(FirstPart { pieces, length })
    }

    /// The tokens of a pair whose first part was taken apart before, for the same kind of truncation.
    ///
    /// # Errors
    /// Those of [`TextEncoder::encode`].
    pub fn encode_second(
        &self,
        first: &FirstPart,
        second: &str,
        truncate: Truncate,
    ) -> Result<TokenRow, TokenizeError> {
        let second = self.pieces(second)?;
        self.row(&self.finished(first.clone(), Some(second), truncate)?)
    }

    /// What a text's pieces, or a pair's, become with special tokens around them, cut to the longest length.
    fn finished(
        &self,
        first: impl Into<FirstPart>,
        mut second: Option<Encoding>,
        truncate: Truncate,
    ) -> Result<Encoding, TokenizeError> {
        let FirstPart { pieces: mut first, length: first_length } = first.into();
        let special = self.special[usize::from(second.is_some())];
        let room = self.length_max - special;
        let pieces = first_length + second.as_ref().map_or(0, Encoding::len);
        if pieces > room {
            let Some(direction) = direction(truncate) else {
                let tokens = pieces + special;
                return Err(TokenizeError::TooLong { tokens, allowed: self.length_max });
            };
            let lengths = longest_first(first_length, second.as_ref().map_or(0, Encoding::len), room);
            cut(&mut first, lengths.0, direction);
            if let Some(second) = &mut second {
                cut(second, lengths.1, direction);
            }
        }
        if let Some(second) = &mut second {
            // The tokenizer's template has the last word: RoBERTa's says 0 for both.
            second.set_type_ids(vec![1; second.len()]);
        }
        self.tokenizer.post_process(first, second, true).map_err(failed)
    }

    fn row(&self, encoding: &Encoding) -> Result<TokenRow, TokenizeError> {
        let types = encoding.get_type_ids();
        // A model without types may have a tokenizer that tells them: DistilBERT's is BERT's.
        let told = self.types > 1 && types.iter().any(|kind| *kind != 0);
        let types = if told { types.to_vec() } else { Vec::new() };
        self.checked(TokenRow::new(encoding.get_ids().to_vec(), types))
    }

    /// How much encoding these rows is, in bytes that the library would take as long for.
    pub(super) fn work(&self, rows: &[TextRow]) -> usize {
        let of = |text: &str| self.work_of(text);
        rows.iter().map(|row| of(&row.text) + row.pair.as_deref().map_or(0, of)).sum()
    }

    /// The same of one text.
    pub(super) fn work_of(&self, text: &str) -> usize {
        match self.words.is_some() && text.is_ascii() {
            true => text.len() / WORDS_GAIN,
            false => text.len(),
        }
    }

    /// The rows' tokens in order, on this thread.
    ///
    /// # Errors
    /// That of the first row that has one.
    pub fn encode_batch(&self, rows: &[TextRow], truncate: Truncate) -> Result<Vec<TokenRow>, RowError> {
        in_order(rows, |TextRow { text, pair }| self.encode(text, pair.as_deref(), truncate))
    }

    /// A row of ids that the client has made itself: nothing is added or cut. `types` is empty or as long as `ids`.
    ///
    /// # Errors
    /// A [`TokenizeError`] when it is empty, too long, or has ids or types that the model does not know.
    pub fn checked(&self, row: TokenRow) -> Result<TokenRow, TokenizeError> {
        let TokenRow { ids, types, .. } = &row;
        if ids.is_empty() {
            return Err(TokenizeError::Empty);
        }
        if ids.len() > self.length_max {
            return Err(TokenizeError::TooLong { tokens: ids.len(), allowed: self.length_max });
        }
        if !types.is_empty() && types.len() != ids.len() {
            return Err(TokenizeError::TypeCount { types: types.len(), ids: ids.len() });
        }
        if let Some(position) = ids.iter().position(|id| *id >= self.vocabulary) {
            let (id, last) = (u64::from(ids[position]), self.vocabulary - 1);
            return Err(TokenizeError::UnknownToken { id, position, last });
        }
        if let Some(position) = types.iter().position(|id| *id >= self.types) {
            return Err(TokenizeError::UnknownType { id: u64::from(types[position]), position, last: self.types - 1 });
        }
        Ok(row)
    }

    /// The tokens of a text however many they are, with the special ones around it if they are wanted.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`].
    pub fn describe(&self, text: &str, special_tokens: bool) -> Result<Vec<Piece>, TokenizeError> {
        let encoding = self.tokenizer.encode(text, special_tokens).map_err(failed)?;
        // A token may be a part of a character.
        let part = |start: usize, stop: usize| {
            String::from_utf8_lossy(text.as_bytes().get(start..stop).unwrap_or_default()).into_owned()
        };
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens()).zip(encoding.get_offsets());
        let pieces = tokens.zip(encoding.get_special_tokens_mask()).map(|(((id, token), offsets), special)| {
            let (start, stop) = *offsets;
            match special {
                0 => Piece { id: *id, text: part(start, stop), place: Some((start, stop)) },
                _ => Piece { id: *id, text: token.clone(), place: None },
            }
        });
        Ok(pieces.collect())
    }

    /// The text of `ids`, with or without special tokens.
    ///
    /// # Errors
    /// [`TokenizeError::UnknownToken`], [`TokenizeError::Failed`].
    pub fn decode(&self, ids: &[u32], special_tokens: bool) -> Result<String, TokenizeError> {
        if let Some(position) = ids.iter().position(|id| *id >= self.vocabulary) {
            let (id, last) = (u64::from(ids[position]), self.vocabulary - 1);
            return Err(TokenizeError::UnknownToken { id, position, last });
        }
        self.tokenizer.decode(ids, !special_tokens).map_err(failed)
    }
}

impl std::fmt::Debug for TextEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TextEncoder { length_max, vocabulary, .. } = self;
        f.debug_struct("TextEncoder")
            .field("length_max", length_max)
            .field("vocabulary", vocabulary)
            .finish_non_exhaustive()
    }
}

/// What becomes of each row, or the first error with the number of its row.
fn in_order<T>(rows: &[TextRow], encode: impl Fn(&TextRow) -> Result<T, TokenizeError>) -> Result<Vec<T>, RowError> {
    let numbered = rows.iter().enumerate();
    numbered.map(|(row, text)| encode(text).map_err(|error| RowError { row, error })).collect()
}

fn direction(truncate: Truncate) -> Option<TruncationDirection> {
    match truncate {
        Truncate::No => None,
        Truncate::End => Some(TruncationDirection::Right),
        Truncate::Start => Some(TruncationDirection::Left),
    }
}

/// Cuts pieces to a length. What is cut off the library keeps, part by part, and makes a pair of each part of one text with
/// each of the other: of two texts of a mebibyte a million pairs.
fn cut(pieces: &mut Encoding, length: usize, direction: TruncationDirection) {
    pieces.truncate(length, 0, direction);
    drop(pieces.take_overflowing());
}

fn failed(error: tokenizers::Error) -> TokenizeError {
    TokenizeError::Failed { reason: error.to_string() }
}

/// Lengths that two parts keep of `room`, the longer giving way first. The longer keeps the odd one, of equal ones the
/// second, as in the tokenizers library.
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    let half = room / 2;
    match (first <= half, second <= half) {
        (true, _) => (first, room - first),
        (_, true) => (room - second, second),
        _ if first > second => (room - half, half),
        _ => (half, room - half),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoder(length_max: u32) -> TextEncoder {
        let json = include_bytes!("../../models/tiny-rerank/tokenizer.json");
        TextEncoder::new(json, length_max, 8192, 2).unwrap()
    }

    const CLS: u32 = 2;
    const SEP: u32 = 3;

    #[test]
    fn truncation_keeps_the_special_tokens_and_the_right_end() {
        let all = encoder(512).encode("web server for small machines", None, Truncate::No).unwrap().ids;
        let count = all.len();
        assert_eq!((all[0], all[count - 1]), (CLS, SEP));
        let short = encoder(count as u32 - 1);
        let error = short.encode("web server for small machines", None, Truncate::No).unwrap_err();
        assert_eq!(error, TokenizeError::TooLong { tokens: count, allowed: count - 1 });
        let cut = |truncate| short.encode("web server for small machines", None, truncate).unwrap().ids;
        assert_eq!(cut(Truncate::End), [&all[..count - 2], &[SEP]].concat());
        assert_eq!(cut(Truncate::Start), [&[CLS], &all[2..]].concat());
        assert_eq!(encoder(count as u32).encode("web server for small machines", None, Truncate::No).unwrap().ids, all);
    }

    #[test]
    fn pairs_carry_types_and_give_way_longest_first() {
        let row = encoder(512).encode("web server", Some("a small one"), Truncate::No).unwrap();
        let middle = row.ids.iter().position(|id| *id == SEP).unwrap();
        assert!(row.types[..=middle].iter().all(|kind| *kind == 0));
        assert!(row.types[middle + 1..].iter().all(|kind| *kind == 1));
        let check = |first, second, room, expected| assert_eq!(longest_first(first, second, room), expected);
        check(3, 100, 10, (3, 7));
        check(100, 3, 10, (7, 3));
        check(100, 100, 10, (5, 5));
        check(100, 100, 11, (5, 6));
        check(101, 100, 11, (6, 5));
        check(100, 101, 11, (5, 6));
        check(5, 100, 11, (5, 6));
        check(100, 5, 11, (6, 5));
        check(0, 100, 10, (0, 10));
        check(100, 0, 10, (10, 0));
        let long = "python json parser ".repeat(40);
        let row = encoder(64).encode(&long, Some(&long), Truncate::End).unwrap();
        assert_eq!((row.ids.len(), row.types.len()), (64, 64));
        assert_eq!(row.ids.iter().filter(|id| **id == SEP).count(), 2);
    }

    #[test]
    fn a_first_part_taken_apart_once_makes_the_same_pairs() {
        let texts = ["web server", "", "a", &"python json parser ".repeat(40), &"web ".repeat(300)];
        for length_max in [8, 9, 64, 65, 512] {
            let encoder = encoder(length_max);
            for truncate in [Truncate::No, Truncate::Start, Truncate::End] {
                for query in texts {
                    let first = encoder.first_part(query, truncate).unwrap();
                    for text in texts {
                        let expected = encoder.encode(query, Some(text), truncate);
                        assert_eq!(
                            encoder.encode_second(&first, text, truncate),
                            expected,
                            "{length_max} {truncate:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn two_long_texts_are_cut_without_pairing_what_is_cut_off() {
        let long = "web ".repeat(1 << 16);
        let started = std::time::Instant::now();
        assert_eq!(encoder(64).encode(&long, Some(&long), Truncate::End).unwrap().ids.len(), 64);
        // Of some seconds if it is slow; every pair of parts takes gigabytes and minutes.
        assert!(started.elapsed() < std::time::Duration::from_secs(30));
    }

    #[test]
    fn a_model_without_types_is_told_none() {
        let json = include_bytes!("../../models/tiny-rerank/tokenizer.json");
        let [with, without] = [2, 1].map(|types| {
            let encoder = TextEncoder::new(json, 512, 8192, types).unwrap();
            encoder.encode("web server", Some("a small one"), Truncate::No).unwrap()
        });
        assert_eq!((with.types.len(), without.types.len()), (with.ids.len(), 0));
        assert_eq!(with.ids, without.ids);
    }

    #[test]
    fn an_empty_text_is_its_special_tokens() {
        assert_eq!(encoder(512).encode("", None, Truncate::No).unwrap().ids, [CLS, SEP]);
    }

    #[test]
    fn ids_are_checked_against_the_vocabulary() {
        let check = |ids: &[u32], types: &[u32], expected: Result<(), TokenizeError>| {
            let row = TokenRow::new(ids.to_vec(), types.to_vec());
            assert_eq!(encoder(4).checked(row).map(|_| ()), expected);
        };
        check(&[0, 8191], &[], Ok(()));
        check(&[0, 8191], &[0, 1], Ok(()));
        check(&[], &[], Err(TokenizeError::Empty));
        check(&[1; 5], &[], Err(TokenizeError::TooLong { tokens: 5, allowed: 4 }));
        check(&[0, 8192], &[], Err(TokenizeError::UnknownToken { id: 8192, position: 1, last: 8191 }));
        check(&[0, 1], &[0], Err(TokenizeError::TypeCount { types: 1, ids: 2 }));
        check(&[0, 1], &[0, 2], Err(TokenizeError::UnknownType { id: 2, position: 1, last: 1 }));
    }

    #[test]
    fn an_error_names_its_row() {
        let row = |text: &str| TextRow { text: text.to_owned(), pair: None };
        let error = encoder(8).encode_batch(&[row("web"), row(&"web ".repeat(9))], Truncate::No).unwrap_err();
        assert_eq!(error.row, 1);
        assert!(error.to_string().starts_with("row 1: 11 tokens"), "{error}");
    }

    #[test]
    fn decoding_gives_the_text_back() {
        let encoder = encoder(512);
        let row = encoder.encode("python json parser", None, Truncate::No).unwrap();
        assert_eq!(encoder.decode(&row.ids, false).unwrap(), "python json parser");
        let with_special = encoder.decode(&row.ids, true).unwrap();
        assert!(with_special.len() > "python json parser".len() && with_special.contains("python json parser"));
        assert!(encoder.decode(&[9000], false).is_err());
    }

    #[test]
    fn tokens_are_shown_with_their_places() {
        let encoder = encoder(512);
        let text = "ein größerer parser";
        let pieces = encoder.describe(text, true).unwrap();
        let row = encoder.encode(text, None, Truncate::No).unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.id).collect::<Vec<_>>(), row.ids);
        let last = pieces.len() - 1;
        for (index, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.place.is_none(), index == 0 || index == last, "{piece:?}");
            if let Some((start, stop)) = piece.place {
                assert_eq!((&text[start..stop], piece.text.is_empty()), (piece.text.as_str(), false));
            }
        }
        assert_eq!(encoder.describe(text, false).unwrap(), pieces[1..last]);
        assert_eq!(encoder.describe("", false).unwrap(), []);
    }

    #[test]
    fn a_tokenizer_that_does_not_fit_is_refused() {
        let json = include_bytes!("../../models/tiny-rerank/tokenizer.json");
        let refused =
            |json: &[u8], length_max, vocabulary| TextEncoder::new(json, length_max, vocabulary, 2).unwrap_err();
        assert!(refused(json, 512, 100).contains("100 embeddings"));
        assert!(refused(json, 3, 8192).contains("special tokens"));
        refused(&json[..1000], 512, 8192);
        refused(b"", 512, 8192);
        let single = r###"{"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
            "post_processor": {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "a", "type_id": 0}}],
                "special_tokens": {"a": {"id": "a", "ids": [0, 0, 0], "tokens": ["a", "a", "a"]}}}}"###;
        assert!(refused(single.as_bytes(), 3, 8192).contains("3 special tokens"));
        let merged = |second: &str, prefix: &str| {
            let vocabulary = format!(r#"{{"a": 0, "{second}": 1}}"#);
            let json = format!(
                r#"{{"added_tokens": [], "model": {{"type": "BPE", "continuing_subword_prefix": "{prefix}",
                    "vocab": {vocabulary}, "merges": [["a", "{second}"]]}}}}"#
            );
            refused(json.as_bytes(), 512, 8192)
        };
        assert!(merged("b", "##").contains("panics"));
        let error = merged("\u{e9}", "#");
        assert!(std::str::from_utf8(error.as_bytes()).is_ok() && error.contains('\u{fffd}'), "{error}");
    }
}
