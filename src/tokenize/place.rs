//! Where a row's tokens are in its text.

use tokenizers::Encoding;

/// One token's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first character, counted from 0: characters are Unicode's code points.
    pub start: u32,
    /// The character behind its last.
    pub end: u32,
    /// The number of the word that it is a part of, as the tokenizer tells words apart; `None` for a special token, which
    /// is nowhere in the text.
    pub word: Option<u32>,
}

/// Those of all tokens of an encoding whose offsets are characters.
pub(super) fn of(encoding: &Encoding) -> Vec<Place> {
    let tokens = encoding.get_offsets().iter().zip(encoding.get_word_ids()).zip(encoding.get_special_tokens_mask());
    let place = |((&(start, end), word), special): ((&(usize, usize), &Option<u32>), &u32)| match special {
        0 => Place { start: start as u32, end: end as u32, word: Some(word.unwrap_or(0)) },
        _ => Place { start: 0, end: 0, word: None },
    };
    tokens.map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::{TextEncoder, Truncate};

    fn encoder(length_max: u32) -> TextEncoder {
        let json = include_bytes!("../../models/tiny-embed/tokenizer.json");
        TextEncoder::new(json, length_max, 8192, 2).unwrap()
    }

    const TEXT: &str = "Zürich's spreadsheets: über 日本 unforgettable";

    /// The texts of the tokens' places, their words, and whether they are special.
    fn pieces(text: &str, row: &[Place]) -> Vec<(String, Option<u32>)> {
        let characters: Vec<char> = text.chars().collect();
        let part = |place: &Place| characters[place.start as usize..place.end as usize].iter().collect();
        row.iter().map(|place| (part(place), place.word)).collect()
    }

    #[test]
    fn places_are_characters_and_words_are_counted() {
        let (row, places) = encoder(512).encode_placed(TEXT, Truncate::No).unwrap();
        assert_eq!(row, encoder(512).encode(TEXT, None, Truncate::No).unwrap());
        assert_eq!(row.ids.len(), places.len());
        let pieces = pieces(TEXT, &places);
        assert_eq!((pieces[0].1, pieces[pieces.len() - 1].1), (None, None));
        let inner = &pieces[1..pieces.len() - 1];
        // Every character but the spaces is in one token.
        assert_eq!(inner.iter().map(|(part, _)| part.as_str()).collect::<String>(), TEXT.replace(' ', ""));
        // A word's tokens follow each other, and words are counted in order.
        assert!(inner.is_sorted_by_key(|(_, word)| *word));
        let words: std::collections::BTreeSet<_> = inner.iter().map(|(_, word)| *word).collect();
        let of_word = |number: u32| {
            inner.iter().filter(|(_, word)| *word == Some(number)).map(|(part, _)| part.as_str()).collect::<String>()
        };
        let found: Vec<String> = (0..words.len() as u32).map(of_word).collect();
        assert_eq!(found, ["Zürich", "'", "s", "spreadsheets", ":", "über", "日", "本", "unforgettable"]);
    }

    #[test]
    fn places_of_a_text_without_its_beginning_are_those_of_the_text() {
        let whole = encoder(512).encode_placed(TEXT, Truncate::No).unwrap().1;
        let count = whole.len();
        let [first, last] = [Truncate::End, Truncate::Start]
            .map(|truncate| encoder(count as u32 - 2).encode_placed(TEXT, truncate).unwrap().1);
        assert_eq!(first[..count - 3], whole[..count - 3]);
        assert_eq!(last[1..], whole[3..]);
    }
}
