//! Texts or token ids, one or several, in the forms in which clients send them. Read element by element: a message of many
//! megabytes becomes what it says and nothing beside it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use crate::service::tei::ask::Inputs;
use crate::tokenize::TextRow;

/// More rows than any server takes: where reading stops.
const ROWS_MAX: usize = 1 << 16;

/// One text, several texts, one row of token ids, several rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenInputs(pub(super) Inputs);

/// One text, a pair of texts, or a list of such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WrittenRows {
    One(TextRow),
    Several(Vec<TextRow>),
}

/// One text or several.
#[derive(Debug)]
pub(super) struct WrittenTexts(pub(super) Vec<String>);

/// A list of texts.
#[derive(Debug)]
pub(super) struct TextList(pub(super) Vec<String>);

/// One row of token ids or several.
#[derive(Debug)]
pub(super) struct WrittenIds(pub(super) Vec<Vec<u32>>);

/// What may stand in a list.
enum Element {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
    /// The first of them: more than a pair has no meaning.
    Texts(Vec<String>),
    Nothing,
}

/// How many are kept, to tell one and a pair from more.
const TEXTS_KEPT: usize = 3;

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        struct OfElement;

        impl<'de> Visitor<'de> for OfElement {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id or a list of either")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Element, E> {
                Ok(Element::Text(text))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                u32::try_from(id)
                    .map(Element::Id)
                    .map_err(|_| E::custom(format!("token id {id} is above {}", u32::MAX)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                match list.next_element()? {
                    None => Ok(Element::Nothing),
                    Some(Element::Text(first)) => Ok(Element::Texts(first_texts(first, &mut list)?)),
                    Some(Element::Id(first)) => Ok(Element::Ids(rest(first, &mut list)?)),
                    Some(_) => Err(A::Error::custom("lists are nested too deep")),
                }
            }
        }

        deserializer.deserialize_any(OfElement)
    }
}

/// The rest of a list, all of one kind.
fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, list: &mut A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = list.next_element()? {
        all.push(next);
    }
    Ok(all)
}

/// The first texts of a list.
fn first_texts<'de, A: SeqAccess<'de>>(first: String, list: &mut A) -> Result<Vec<String>, A::Error> {
    let mut kept = vec![first];
    while kept.len() < TEXTS_KEPT
        && let Some(next) = list.next_element()?
    {
        kept.push(next);
    }
    while list.next_element::<IgnoredAny>()?.is_some() {}
    Ok(kept)
}

/// What a list of inputs is made of.
const ONE_KIND: &str = "a list has texts or lists of token ids, not both";

/// The rest of a list of rows; `kind` says what they have to be.
fn rows<'de, T, A: SeqAccess<'de>>(
    first: T,
    list: &mut A,
    read: impl Fn(Element) -> Option<T>,
    kind: &str,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = list.next_element()? {
        let row = all.len();
        all.push(
            read(next)
                .ok_or_else(|| A::Error::custom(format!("row {row} is of another kind than the first: {kind}")))?,
        );
        if all.len() > ROWS_MAX {
            return Err(A::Error::custom(format!("there are more than {ROWS_MAX} rows")));
        }
    }
    Ok(all)
}

impl<'de> Deserialize<'de> for WrittenInputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WrittenInputs, D::Error> {
        struct OfInputs;

        impl<'de> Visitor<'de> for OfInputs {
            type Value = WrittenInputs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of texts, a list of token ids or a list of such lists")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<WrittenInputs, E> {
                Ok(WrittenInputs(Inputs::Texts(vec![text.to_owned()])))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WrittenInputs, A::Error> {
                let ids = |element| match element {
                    Element::Ids(ids) => Some(ids),
                    Element::Nothing => Some(Vec::new()),
                    Element::Text(_) | Element::Id(_) | Element::Texts(_) => None,
                };
                let text = |element| if let Element::Text(text) = element { Some(text) } else { None };
                Ok(WrittenInputs(match list.next_element()? {
                    None => Inputs::Texts(Vec::new()),
                    Some(Element::Text(first)) => Inputs::Texts(rows(first, &mut list, text, ONE_KIND)?),
                    Some(Element::Id(first)) => Inputs::Tokens(vec![rest(first, &mut list)?]),
                    Some(Element::Texts(_)) => return Err(A::Error::custom("a row is a text or a list of token ids")),
                    Some(other) => Inputs::Tokens(rows(ids(other).unwrap_or_default(), &mut list, ids, ONE_KIND)?),
                }))
            }
        }

        deserializer.deserialize_any(OfInputs)
    }
}

impl<'de> Deserialize<'de> for WrittenRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WrittenRows, D::Error> {
        struct OfRows;

        impl<'de> Visitor<'de> for OfRows {
            type Value = WrittenRows;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a pair of texts, or a list of [text] and [text, text]")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<WrittenRows, E> {
                Ok(WrittenRows::One(TextRow { text: text.to_owned(), pair: None }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WrittenRows, A::Error> {
                let pair = |element| if let Element::Texts(texts) = element { one_or_two(texts) } else { None };
                match list.next_element()? {
                    None => Ok(WrittenRows::Several(Vec::new())),
                    Some(Element::Text(first)) => one_or_two(first_texts(first, &mut list)?)
                        .map(WrittenRows::One)
                        .ok_or_else(|| A::Error::custom("one text or a pair is needed; several are a list of lists")),
                    Some(other) => {
                        let first =
                            pair(other).ok_or_else(|| A::Error::custom("row 0 is neither [text] nor [text, text]"))?;
                        Ok(WrittenRows::Several(rows(first, &mut list, pair, "each is [text] or [text, text]")?))
                    }
                }
            }
        }

        deserializer.deserialize_any(OfRows)
    }
}

impl<'de> Deserialize<'de> for WrittenTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WrittenTexts, D::Error> {
        match WrittenInputs::deserialize(deserializer)?.0 {
            Inputs::Texts(texts) => Ok(WrittenTexts(texts)),
            Inputs::Tokens(_) => Err(D::Error::custom("a text or a list of texts is needed")),
        }
    }
}

impl<'de> Deserialize<'de> for WrittenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WrittenIds, D::Error> {
        match WrittenInputs::deserialize(deserializer)?.0 {
            Inputs::Tokens(rows) => Ok(WrittenIds(rows)),
            // An empty list says nothing of its kind: here it is a row.
            Inputs::Texts(texts) if texts.is_empty() => Ok(WrittenIds(vec![Vec::new()])),
            Inputs::Texts(_) => Err(D::Error::custom("a list of token ids or a list of such lists is needed")),
        }
    }
}

impl<'de> Deserialize<'de> for TextList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextList, D::Error> {
        struct OfTexts;

        impl<'de> Visitor<'de> for OfTexts {
            type Value = TextList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TextList, A::Error> {
                let text = |element| if let Element::Text(text) = element { Some(text) } else { None };
                let Some(first) = list.next_element()? else { return Ok(TextList(Vec::new())) };
                Ok(TextList(rows(first, &mut list, text, "each is a text")?))
            }
        }

        deserializer.deserialize_seq(OfTexts)
    }
}

fn one_or_two(texts: Vec<String>) -> Option<TextRow> {
    let mut texts = texts.into_iter();
    match (texts.next(), texts.next(), texts.next()) {
        (Some(text), pair, None) => Some(TextRow { text, pair }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_read_in_every_form() {
        let read = |json: &str| {
            serde_json::from_str::<WrittenInputs>(json).map(|read| read.0).map_err(|error| error.to_string())
        };
        let texts = |texts: &[&str]| Ok(Inputs::Texts(texts.iter().map(|text| (*text).to_owned()).collect()));
        assert_eq!(read(r#""a""#), texts(&["a"]));
        assert_eq!(read(r#""a\n""#), texts(&["a\n"]));
        assert_eq!(read(r#"["a", "b"]"#), texts(&["a", "b"]));
        assert_eq!(read("[]"), texts(&[]));
        assert_eq!(read("[1, 2]"), Ok(Inputs::Tokens(vec![vec![1, 2]])));
        assert_eq!(read("[[1], [2, 3], []]"), Ok(Inputs::Tokens(vec![vec![1], vec![2, 3], vec![]])));
        for (json, part) in [
            ("7", "a list of texts"),
            (r#"["a", 1]"#, "row 1"),
            (r#"["a", [1]]"#, "not both"),
            (r#"[[1], "a"]"#, "not both"),
            (r#"[1, "a"]"#, "expected u32"),
            (r#"[["a"]]"#, "a list of token ids"),
            ("[-1]", "token id"),
            ("[5000000000]", "5000000000"),
            ("[[[1]]]", "too deep"),
            (&format!("[{}[]]", "[],".repeat(ROWS_MAX)), "more than 65536 rows"),
        ] {
            let refused = read(json).expect_err("it has no meaning");
            assert!(refused.contains(part), "'{part}' is not in: {refused}");
        }
    }

    #[test]
    fn lists_of_one_kind_take_nothing_else() {
        let texts = |json: &str| serde_json::from_str::<WrittenTexts>(json).map(|read| read.0).ok();
        assert_eq!(texts(r#""a""#), Some(vec!["a".to_owned()]));
        assert_eq!(texts(r#"["a", "b"]"#), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!((texts("[]"), texts("[1]"), texts("[[]]")), (Some(vec![]), None, None));
        let list = |json: &str| serde_json::from_str::<TextList>(json).map(|read| read.0).ok();
        assert_eq!(list(r#"["a", "b"]"#), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!((list("[]"), list(r#""a""#), list("[1]"), list(r#"["a", 1]"#)), (Some(vec![]), None, None, None));
        let ids = |json: &str| serde_json::from_str::<WrittenIds>(json).map(|read| read.0).ok();
        assert_eq!((ids("[1, 2]"), ids("[[1], []]")), (Some(vec![vec![1, 2]]), Some(vec![vec![1], vec![]])));
        assert_eq!((ids("[]"), ids(r#"["a"]"#), ids("1")), (Some(vec![vec![]]), None, None));
    }

    /// Two characters of a message become an entry of a list: who sends many gets an error before they are many.
    #[test]
    fn lists_end_where_no_server_takes_more() {
        let many = format!("[{}\"\"]", "\"\",".repeat(ROWS_MAX));
        let error = |error: serde_json::Error| error.to_string();
        let refused = [
            serde_json::from_str::<WrittenTexts>(&many).map_err(error).map(|_| ()),
            serde_json::from_str::<TextList>(&many).map_err(error).map(|_| ()),
            serde_json::from_str::<WrittenInputs>(&many).map_err(error).map(|_| ()),
        ];
        assert!(
            refused.iter().all(|read| read.as_ref().is_err_and(|error| error.contains("more than"))),
            "{refused:?}"
        );
        let Element::Texts(kept) = serde_json::from_str(&many).unwrap() else {
            panic!("texts are read as another kind")
        };
        assert_eq!(kept.len(), TEXTS_KEPT);
    }

    #[test]
    fn rows_are_texts_or_pairs() {
        let row = |text: &str, pair: Option<&str>| TextRow { text: text.to_owned(), pair: pair.map(str::to_owned) };
        let read = |json: &str| serde_json::from_str::<WrittenRows>(json);
        assert_eq!(read(r#""a""#).unwrap(), WrittenRows::One(row("a", None)));
        assert_eq!(read(r#"["a"]"#).unwrap(), WrittenRows::One(row("a", None)));
        assert_eq!(read(r#"["a", "b"]"#).unwrap(), WrittenRows::One(row("a", Some("b"))));
        let several = WrittenRows::Several(vec![row("a", None), row("b", Some("c"))]);
        assert_eq!(read(r#"[["a"], ["b", "c"]]"#).unwrap(), several);
        for json in [r#"["a", "b", "c"]"#, r#"[["a"], "b"]"#, r#"[["a", "b", "c"]]"#, r#"[[1]]"#, "[[]]", "1"] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
