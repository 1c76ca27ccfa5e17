//! From the scores of a text's tokens to labelled spans of it. Pure.
//!
//! The strategies are those of transformers' `TokenClassificationPipeline`, with one difference: which tokens are one word
//! is the tokenizer's to say, where that guesses it from spaces for some tokenizers.

use crate::tokenize::Place;

/// How the labels of tokens become those of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Aggregation {
    /// Each token is a span.
    None,
    /// Neighbours with the same label are one span; a label that begins with `B-` begins one.
    #[default]
    Simple,
    /// The same with words instead of tokens; a word has the scores of its first token.
    First,
    /// A word has the mean of its tokens' scores.
    Average,
    /// A word has the scores of the token with the highest one.
    Max,
}

impl Aggregation {
    /// By the names that transformers has for them.
    pub(crate) fn named(name: &str) -> Option<Aggregation> {
        Some(match name {
            "none" => Aggregation::None,
            "simple" => Aggregation::Simple,
            "first" => Aggregation::First,
            "average" => Aggregation::Average,
            "max" => Aggregation::Max,
            _ => return None,
        })
    }

    pub(crate) const NAMES: &str = "none, simple, first, average, max";
}

/// A part of a text with one label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    /// Without its `B-` or `I-` where tokens are put together.
    pub(crate) label: String,
    /// The number of the label, of the first token's where several are put together.
    pub(crate) index: usize,
    /// Of several tokens or words the mean.
    pub(crate) score: f32,
    /// The first of its tokens, special ones counted, and how many there are.
    pub(crate) first: usize,
    pub(crate) tokens: usize,
    /// Its characters, from the first to behind the last.
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// The spans of one text. `scores` are those of its tokens end to end, one for each of `labels`; `places` are the tokens'.
/// Spans whose label is in `ignored` are left out, special tokens always are.
pub(crate) fn spans(
    labels: &[String],
    scores: &[f32],
    places: &[Place],
    aggregation: Aggregation,
    ignored: &[String],
) -> Vec<Span> {
    let mut found = match aggregation {
        Aggregation::None => tokens(labels, scores, places),
        Aggregation::Simple => grouped(tokens(labels, scores, places)),
        Aggregation::First | Aggregation::Average | Aggregation::Max => {
            grouped(words(labels, scores, places, aggregation))
        }
    };
    found.retain(|span| !ignored.contains(&span.label));
    found
}

/// A text whose parts are found by the numbers of their characters.
pub(crate) struct Characters<'a> {
    text: &'a str,
    /// The first byte of each character.
    starts: Vec<usize>,
}

impl<'a> Characters<'a> {
    pub(crate) fn of(text: &'a str) -> Characters<'a> {
        Characters { text, starts: text.char_indices().map(|(byte, _)| byte).collect() }
    }

    /// What stands where a span is.
    pub(crate) fn part(&self, span: &Span) -> &'a str {
        let byte = |character: u32| self.starts.get(character as usize).copied().unwrap_or(self.text.len());
        self.text.get(byte(span.start)..byte(span.end)).unwrap_or_default()
    }
}

/// Places of tokens of which no text is known, each of them a word.
pub(crate) fn nowhere(tokens: u32) -> Vec<Place> {
    (0..tokens).map(|token| Place { start: 0, end: 0, word: Some(token) }).collect()
}

/// Each token of the text by its best label.
fn tokens(labels: &[String], scores: &[f32], places: &[Place]) -> Vec<Span> {
    let rows = scores.chunks_exact(labels.len()).zip(places).enumerate();
    let of_text = rows.filter(|(_, (_, place))| place.word.is_some());
    of_text.map(|(token, (scores, place))| span(labels, scores, (token, 1), (place.start, place.end))).collect()
}

/// Each word by its best label.
fn words(labels: &[String], scores: &[f32], places: &[Place], aggregation: Aggregation) -> Vec<Span> {
    let mut found = Vec::new();
    let mut token = 0;
    while token < places.len() {
        let Some(word) = places[token].word else {
            token += 1;
            continue;
        };
        let count = places[token..].iter().take_while(|place| place.word == Some(word)).count();
        let rows = scores[token * labels.len()..][..count * labels.len()].chunks_exact(labels.len());
        let scores = of_word(rows, aggregation);
        let ends = (places[token].start, places[token + count - 1].end);
        found.push(span(labels, &scores, (token, count), ends));
        token += count;
    }
    found
}

/// A word's scores by those of its tokens, of which there is one at least.
fn of_word<'a>(rows: impl Iterator<Item = &'a [f32]> + Clone, aggregation: Aggregation) -> Vec<f32> {
    let highest = |row: &[f32]| row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let chosen = match aggregation {
        Aggregation::Average => {
            let count = rows.clone().count() as f32;
            let sum = rows.fold(Vec::new(), |sum: Vec<f32>, row| match sum.is_empty() {
                true => row.to_vec(),
                false => sum.iter().zip(row).map(|(a, b)| a + b).collect(),
            });
            return sum.into_iter().map(|value| value / count).collect();
        }
        // Of equal ones the first.
        Aggregation::Max => rows.reduce(|best, row| if highest(row) > highest(best) { row } else { best }),
        Aggregation::None | Aggregation::Simple | Aggregation::First => rows.into_iter().next(),
    };
    chosen.unwrap_or_default().to_vec()
}

/// By the best of the scores, of equal ones the first.
fn span(labels: &[String], scores: &[f32], (first, tokens): (usize, usize), (start, end): (u32, u32)) -> Span {
    let better = |best: (usize, f32), (index, score): (usize, f32)| if score > best.1 { (index, score) } else { best };
    let scored = scores.iter().copied().enumerate();
    let (index, score) = scored.fold((0, f32::NEG_INFINITY), better);
    Span { label: labels[index].clone(), index, score, first, tokens, start, end }
}

/// Neighbours that belong together as one span.
fn grouped(spans: Vec<Span>) -> Vec<Span> {
    let groups = spans.chunk_by(|before, next| {
        let (begins, label) = kind(&next.label);
        !begins && label == kind(&before.label).1
    });
    let joined = groups.map(|group| {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        Span {
            label: kind(&first.label).1.to_owned(),
            index: first.index,
            score: group.iter().map(|span| span.score).sum::<f32>() / group.len() as f32,
            first: first.first,
            tokens: last.first + last.tokens - first.first,
            start: first.start,
            end: last.end,
        }
    });
    joined.collect()
}

/// Whether a label begins something, and what.
fn kind(label: &str) -> (bool, &str) {
    match label.split_at_checked(2) {
        Some(("B-", rest)) => (true, rest),
        Some(("I-", rest)) => (false, rest),
        _ => (false, label),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::service::results;
    use crate::tokenize::{TextEncoder, Truncate};

    const LABELS: [&str; 4] = ["O", "B-PER", "I-PER", "LOC"];

    fn labels() -> Vec<String> {
        LABELS.map(str::to_owned).to_vec()
    }

    /// `[CLS] An na Berg met Li , Ann in Rome [SEP]`: places of tokens, two of which are one word.
    fn places() -> Vec<Place> {
        let special = Place { start: 0, end: 0, word: None };
        let ends = [
            (0, 2, 0),
            (2, 4, 0),
            (5, 9, 1),
            (10, 13, 2),
            (14, 16, 3),
            (16, 17, 4),
            (18, 21, 5),
            (22, 24, 6),
            (25, 29, 7),
        ];
        let inner = ends.map(|(start, end, word)| Place { start, end, word: Some(word) });
        [&[special], &inner[..], &[special]].concat()
    }

    /// Scores of which this label has the most; all others share the rest.
    fn scores(chosen: &[(usize, f32)]) -> Vec<f32> {
        let row = |&(label, score): &(usize, f32)| {
            (0..LABELS.len()).map(move |other| if other == label { score } else { (1.0 - score) / 3.0 })
        };
        chosen.iter().flat_map(row).collect()
    }

    const CHOSEN: [(usize, f32); 11] = [
        (3, 0.99),
        (1, 0.9),
        (0, 0.6),
        (2, 0.8),
        (0, 0.9),
        (1, 0.7),
        (0, 0.5),
        (1, 0.9),
        (0, 0.9),
        (3, 0.8),
        (3, 0.99),
    ];

    #[track_caller]
    fn check(aggregation: Aggregation, ignored: &[&str], expected: &[(&str, u32, u32, usize, usize)]) {
        let ignored: Vec<String> = ignored.iter().map(|label| (*label).to_owned()).collect();
        let found = spans(&labels(), &scores(&CHOSEN), &places(), aggregation, &ignored);
        let found: Vec<_> =
            found.iter().map(|span| (span.label.as_str(), span.start, span.end, span.first, span.tokens)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn without_aggregation_each_token_is_a_span() {
        check(
            Aggregation::None,
            &["O"],
            &[
                ("B-PER", 0, 2, 1, 1),
                ("I-PER", 5, 9, 3, 1),
                ("B-PER", 14, 16, 5, 1),
                ("B-PER", 18, 21, 7, 1),
                ("LOC", 25, 29, 9, 1),
            ],
        );
        // All but the special ones.
        let all = spans(&labels(), &scores(&CHOSEN), &places(), Aggregation::None, &[]);
        assert_eq!(all.iter().map(|span| span.first).collect::<Vec<_>>(), (1..10).collect::<Vec<_>>());
        assert_eq!((all[0].index, all[0].score), (1, 0.9));
    }

    #[test]
    fn neighbours_with_one_label_are_one_span_and_a_beginning_is_another() {
        let rest = [("PER", 14, 16, 5, 1), ("PER", 18, 21, 7, 1), ("LOC", 25, 29, 9, 1)];
        // The second part of "Anna" is "O" by itself.
        let simple = [&[("PER", 0, 2, 1, 1), ("PER", 5, 9, 3, 1)], &rest[..]].concat();
        check(Aggregation::Simple, &["O"], &simple);
        let by_words = [&[("PER", 0, 9, 1, 3)], &rest[..]].concat();
        check(Aggregation::First, &["O"], &by_words);
        check(Aggregation::Max, &["O"], &by_words);
        check(Aggregation::Average, &["O"], &by_words);
        check(Aggregation::First, &["O", "LOC"], &by_words[..3]);
        let spans = spans(&labels(), &scores(&CHOSEN), &places(), Aggregation::First, &[]);
        assert!((spans[0].score - (0.9 + 0.8) / 2.0).abs() < 1e-6);
        assert_eq!(spans[1].label, "O");
    }

    #[test]
    fn a_words_scores_are_its_first_its_mean_or_its_surest() {
        let rows: [&[f32]; 3] = [&[0.6, 0.4], &[0.1, 0.9], &[0.3, 0.7]];
        let of = |aggregation| of_word(rows.into_iter(), aggregation);
        assert_eq!(of(Aggregation::First), [0.6, 0.4]);
        assert_eq!(of(Aggregation::Max), [0.1, 0.9]);
        let mean = of(Aggregation::Average);
        assert!((mean[0] - 1.0 / 3.0).abs() < 1e-6 && (mean[1] - 2.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn labels_are_told_from_their_beginnings() {
        let check = |label, expected| assert_eq!(kind(label), expected);
        check("B-PER", (true, "PER"));
        check("I-PER", (false, "PER"));
        check("PER", (false, "PER"));
        check("B-", (true, ""));
        check("É-X", (false, "É-X"));
        check("", (false, ""));
    }

    /// What transformers' pipeline makes of the same logits; where it guesses words from spaces, of tokens only.
    #[test]
    fn spans_are_those_of_transformers() {
        let read = |path: &str| std::fs::read(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for (name, strategies) in [
            ("bert-tokens", &["none", "simple", "first", "average", "max"][..]),
            ("distilbert-tokens", &["none", "simple", "first", "average", "max"]),
            ("roberta-tokens", &["none", "simple"]),
            ("modernbert-tokens", &["none", "simple"]),
        ] {
            let folder = format!("tests/reference/data/{name}");
            let encoder = TextEncoder::new(&read(&format!("{folder}/tokenizer.json")), 64, 320, 2).unwrap();
            let reference: Value = serde_json::from_slice(&read(&format!("{folder}/reference.json"))).unwrap();
            for item in reference["items"].as_array().unwrap() {
                let (text, mut scores) = (item["text"].as_str().unwrap(), Vec::new());
                for row in item["logits"].as_array().unwrap() {
                    let mut row: Vec<f32> =
                        row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
                    results::softmax(&mut row);
                    scores.extend(row);
                }
                let places = encoder.encode_placed(text, Truncate::No).unwrap().1;
                for &strategy in strategies {
                    let found = spans(&labels(), &scores, &places, Aggregation::named(strategy).unwrap(), &[]);
                    let expected = item["spans"][strategy].as_array().unwrap();
                    assert_eq!(found.len(), expected.len(), "{name}, {strategy}: {text}");
                    for (found, expected) in found.iter().zip(expected) {
                        let at = format!("{name}, {strategy}: {found:?}, not {expected}");
                        assert_eq!(Some(found.label.as_str()), expected[0].as_str(), "{at}");
                        assert!((f64::from(found.score) - expected[1].as_f64().unwrap()).abs() < 1e-5, "{at}");
                        // tokenizer.json says for this one that spaces at a token's ends are not its own; transformers
                        // 5 leaves them to it.
                        if name != "roberta-tokens" {
                            let place = [expected[2].as_u64(), expected[3].as_u64()];
                            assert_eq!([Some(u64::from(found.start)), Some(u64::from(found.end))], place, "{at}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn parts_are_found_by_characters() {
        let check = |start, end, expected| {
            let span = Span { label: String::new(), index: 0, score: 0.0, first: 0, tokens: 1, start, end };
            assert_eq!(Characters::of("Zürich: 日本").part(&span), expected);
        };
        check(0, 6, "Zürich");
        check(8, 10, "日本");
        check(9, 99, "本");
        check(99, 100, "");
    }

    #[test]
    fn a_text_without_tokens_has_no_spans() {
        let special = Place { start: 0, end: 0, word: None };
        for aggregation in [Aggregation::None, Aggregation::Simple, Aggregation::Average] {
            assert_eq!(spans(&labels(), &scores(&CHOSEN[..2]), &[special; 2], aggregation, &[]), []);
        }
    }

    #[test]
    fn strategies_have_the_names_of_transformers() {
        for name in Aggregation::NAMES.split(", ") {
            assert!(Aggregation::named(name).is_some());
        }
        assert_eq!(Aggregation::named("Simple"), None);
    }
}
