//! Whole words of texts, looked up at once, for tokenizers of BERT's kind.
//!
//! Such a tokenizer cleans a text, makes it lower-case, splits it at whitespace and around punctuation, and covers each word
//! with the longest pieces of a vocabulary. Most words are ASCII and pieces as they are. The library takes about a
//! microsecond for each, nearly all of it for tables of Unicode and for the letters' places; a server with many callers of
//! single texts spends most of its processor on that. Here each stretch between whitespace is looked at by itself: words
//! that are pieces are looked up, other ASCII words go to the library's model, stretches with anything else to the whole
//! library, as do texts that have an added token in them.
//!
//! The ids are those of the library for the whole text: cleaning, decomposing and lower-casing a stretch depend on nothing
//! beyond its whitespace. A test compares them over texts of every kind.

use std::collections::HashMap;

use tokenizers::{Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Result, Tokenizer};

/// The words that are pieces of a vocabulary.
#[derive(Debug)]
pub(super) struct WholeWords {
    lowercase: bool,
    pieces: HashMap<String, u32>,
    /// What is found in a text before anything is done with it, such as `[SEP]`.
    added: Vec<String>,
    /// Whether a byte begins one of those.
    begins_added: [bool; 256],
}

impl WholeWords {
    /// Those of a tokenizer, if it is of this kind.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<WholeWords> {
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = tokenizer.get_normalizer() else { return None };
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = tokenizer.get_pre_tokenizer() else { return None };
        let ModelWrapper::WordPiece(model) = tokenizer.get_model() else { return None };
        let tokens = tokenizer.get_added_tokens_decoder();
        // Those that are looked for in the normalized text would have to be looked for there.
        if tokens.values().any(|token| token.normalized || token.content.is_empty()) {
            return None;
        }
        let added: Vec<String> = tokens.into_values().map(|token| token.content).collect();
        let mut begins_added = [false; 256];
        added.iter().for_each(|content| begins_added[usize::from(content.as_bytes()[0])] = true);
        let is_word = |piece: &String| {
            let bytes = piece.as_bytes();
            let whole = bytes.len() == 1 || !bytes.iter().any(u8::is_ascii_punctuation);
            is_plain(bytes) && whole && bytes.len() <= model.max_input_chars_per_word
        };
        let pieces = model.get_vocab().into_iter().filter(|(piece, _)| is_word(piece)).collect();
        Some(WholeWords { lowercase: normalizer.lowercase, pieces, added, begins_added })
    }

    /// The ids of a text without special tokens around it.
    ///
    /// # Errors
    /// That of the library.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
        if self.has_added(text) {
            return Ok(tokenizer.encode_fast(text, false)?.get_ids().to_vec());
        }
        // A guess: English has some five letters a word.
        let mut ids = Vec::with_capacity(text.len() / 4);
        let mut word = String::new();
        for stretch in text.split([' ', '\t', '\n', '\r']) {
            if is_plain(stretch.as_bytes()) {
                self.split(tokenizer, stretch, &mut word, &mut ids)?;
            } else {
                ids.extend_from_slice(tokenizer.encode_fast(stretch, false)?.get_ids());
            }
        }
        Ok(ids)
    }

    fn has_added(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let begins = |at: usize| self.added.iter().any(|content| bytes[at..].starts_with(content.as_bytes()));
        bytes.iter().enumerate().any(|(at, byte)| self.begins_added[usize::from(*byte)] && begins(at))
    }

    /// Adds the ids of a stretch of letters, digits and punctuation, of which each mark is a word. `word` is room to work in.
    fn split(&self, tokenizer: &Tokenizer, stretch: &str, word: &mut String, ids: &mut Vec<u32>) -> Result<()> {
        let mut rest = stretch;
        while let Some(first) = rest.bytes().next() {
            let end = match first.is_ascii_punctuation() {
                true => 1,
                false => rest.bytes().position(|byte| byte.is_ascii_punctuation()).unwrap_or(rest.len()),
            };
            let (found, behind) = rest.split_at(end);
            rest = behind;
            word.clear();
            word.push_str(found);
            if self.lowercase {
                word.make_ascii_lowercase();
            }
            match self.pieces.get(word) {
                Some(id) => ids.push(*id),
                None => ids.extend(tokenizer.get_model().tokenize(word)?.iter().map(|piece| piece.id)),
            }
        }
        Ok(())
    }
}

/// Letters, digits and punctuation of ASCII: what no cleaning takes away or takes apart.
fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use serde_json::{Value, json};

    use super::*;

    const BERT: &[u8] = include_bytes!("../../models/tiny-embed/tokenizer.json");

    /// What texts are made of: words in and out of the vocabulary, marks, whitespace and controls of every kind, letters with
    /// accents in one sign or two, other scripts, and what looks like an added token or is one.
    const PARTS: [&str; 48] = [
        "the",
        "The",
        "server",
        "SERVER",
        "zqxjk",
        "unbelievableness",
        "a",
        "I",
        "2024",
        "3.14",
        "don't",
        "e-mail",
        "C++",
        "...",
        "?!",
        "$5",
        "`x`",
        "#",
        "##ing",
        "[",
        "]",
        "[SEP",
        "[SEP]",
        "[UNK]",
        "[cls]",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u{b}",
        "\u{c}",
        "\0",
        "\u{7f}",
        "\u{a0}",
        "\u{200b}",
        "\u{2019}",
        "\u{fffd}",
        "caf\u{e9}",
        "e\u{301}",
        "\u{301}",
        "\u{c9}T\u{c9}",
        "\u{3a3}\u{391}\u{3a3}",
        "\u{130}",
        "\u{6771}\u{4eac}",
        "\u{d55c}\u{ad6d}",
        "\u{1f600}",
        "\u{ad}",
    ];

    fn tokenizer(change: impl FnOnce(&mut Value)) -> Tokenizer {
        let mut written: Value = serde_json::from_slice(BERT).unwrap();
        change(&mut written);
        Tokenizer::from_bytes(serde_json::to_vec(&written).unwrap()).unwrap()
    }

    fn compare(tokenizer: &Tokenizer, text: &str) {
        let expected = tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(WholeWords::of(tokenizer).unwrap().encode(tokenizer, text).unwrap(), expected, "{text:?}");
    }

    #[test]
    fn ids_are_those_of_the_library() {
        let mut random = StdRng::seed_from_u64(3);
        let forms = [
            json!({}),
            json!({"lowercase": false}),
            json!({"lowercase": false, "strip_accents": true}),
            json!({"strip_accents": false}),
            json!({"clean_text": false, "handle_chinese_chars": false}),
        ];
        for form in forms {
            let tokenizer = tokenizer(|written| {
                let normalizer = written["normalizer"].as_object_mut().unwrap();
                normalizer.extend(form.as_object().unwrap().clone());
            });
            let words = WholeWords::of(&tokenizer).unwrap();
            for _ in 0..2000 {
                // With and without a space between them, so that parts meet.
                let gap = if random.random_bool(0.5) { " " } else { "" };
                let count = random.random_range(0..12);
                let parts: Vec<&str> = (0..count).map(|_| PARTS[random.random_range(0..PARTS.len())]).collect();
                let text = parts.join(gap);
                let expected = tokenizer.encode_fast(text.as_str(), false).unwrap();
                assert_eq!(words.encode(&tokenizer, &text).unwrap(), expected.get_ids(), "{form}: {text:?}");
            }
        }
    }

    #[test]
    fn words_that_are_too_long_are_unknown() {
        let tokenizer = tokenizer(|written| written["model"]["max_input_chars_per_word"] = json!(5));
        for text in ["the server", &"x".repeat(300), "their", "server's"] {
            compare(&tokenizer, text);
        }
    }

    #[test]
    fn other_kinds_are_left_to_the_library() {
        assert!(WholeWords::of(&tokenizer(|_| {})).is_some());
        let changes: [fn(&mut Value); 4] = [
            |written| written["normalizer"] = json!({"type": "Lowercase"}),
            |written| written["pre_tokenizer"] = json!({"type": "Whitespace"}),
            |written| written["normalizer"] = Value::Null,
            // It is looked for in the text as it is after cleaning.
            |written| written["added_tokens"][0]["normalized"] = json!(true),
        ];
        for change in changes {
            assert!(WholeWords::of(&tokenizer(change)).is_none());
        }
    }
}
