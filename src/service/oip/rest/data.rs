//! The elements of a tensor in JSON: one list, or lists within lists as its dimensions are.

use std::fmt;

use prost::bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use crate::service::errors::Problem;
use crate::service::proto::inference::InferTensorContents;

/// Lists within lists, at most: no tensor here has more dimensions.
const DEPTH_MAX: usize = 8;

/// More texts than any server takes: three characters of a message become an entry of 24 bytes.
const TEXTS_MAX: usize = 1 << 16;

/// The elements in their order, whatever lists they are in. They are of one kind; an integer is a number too.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    None,
    Flags(Vec<bool>),
    Integers(Vec<i64>),
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        let mut data = Data::None;
        deserializer.deserialize_seq(List { into: &mut data, depth: 0 })?;
        Ok(data)
    }
}

/// A list, or what is in one.
struct List<'a> {
    into: &'a mut Data,
    depth: usize,
}

impl<'de> serde::de::DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl List<'_> {
    fn mixed<E: Error>() -> E {
        E::custom("the elements of a tensor are of one kind: true and false, numbers, or texts")
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the elements of a tensor: a list of numbers, texts, or true and false")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.depth == DEPTH_MAX {
            return Err(A::Error::custom(format!("there are more than {DEPTH_MAX} lists within one another")));
        }
        while list.next_element_seed(List { into: self.into, depth: self.depth + 1 })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<(), E> {
        match self.into {
            Data::None => *self.into = Data::Flags(vec![flag]),
            Data::Flags(flags) => flags.push(flag),
            _ => return Err(List::mixed()),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        match self.into {
            Data::None => *self.into = Data::Integers(vec![number]),
            Data::Integers(numbers) => numbers.push(number),
            Data::Numbers(numbers) => numbers.push(number as f64),
            _ => return Err(List::mixed()),
        }
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        let number =
            i64::try_from(number).map_err(|_| E::custom(format!("{number} is larger than an INT64 can be")))?;
        self.visit_i64(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        match self.into {
            Data::None => *self.into = Data::Numbers(vec![number]),
            Data::Numbers(numbers) => numbers.push(number),
            Data::Integers(integers) => {
                let numbers = integers.iter().map(|integer| *integer as f64).chain([number]).collect();
                *self.into = Data::Numbers(numbers);
            }
            _ => return Err(List::mixed()),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<(), E> {
        match self.into {
            Data::None => *self.into = Data::Texts(vec![text]),
            Data::Texts(texts) if texts.len() == TEXTS_MAX => {
                return Err(E::custom(format!("a tensor has more than {TEXTS_MAX} texts")));
            }
            Data::Texts(texts) => texts.push(text),
            _ => return Err(List::mixed()),
        }
        Ok(())
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Err(List::mixed())
    }
}

impl Data {
    /// As typed contents of this datatype. What does not belong into one is refused; that a datatype exists is not
    /// checked here.
    pub(super) fn into_contents(self, field: &str, datatype: &str) -> Result<InferTensorContents, Problem> {
        let mut contents = InferTensorContents::default();
        let unfit = |what: &str| Problem::invalid(field, format!("its data are {what} and its datatype is {datatype}"));
        let integers = || Problem::invalid(field, format!("a number of its data is not of {datatype}"));
        match (datatype, self) {
            (_, Data::None) => {}
            ("BOOL", Data::Flags(flags)) => contents.bool_contents = flags,
            ("BYTES", Data::Texts(texts)) => {
                contents.bytes_contents = texts.into_iter().map(Bytes::from).collect();
            }
            ("INT8" | "INT16" | "INT32", Data::Integers(numbers)) => {
                let numbers = numbers.into_iter().map(i32::try_from).collect::<Result<_, _>>();
                contents.int_contents = numbers.map_err(|_| integers())?;
            }
            ("INT64", Data::Integers(numbers)) => contents.int64_contents = numbers,
            ("UINT8" | "UINT16" | "UINT32", Data::Integers(numbers)) => {
                let numbers = numbers.into_iter().map(u32::try_from).collect::<Result<_, _>>();
                contents.uint_contents = numbers.map_err(|_| integers())?;
            }
            ("UINT64", Data::Integers(numbers)) => {
                let numbers = numbers.into_iter().map(u64::try_from).collect::<Result<_, _>>();
                contents.uint64_contents = numbers.map_err(|_| integers())?;
            }
            ("FP32", Data::Integers(numbers)) => {
                contents.fp32_contents = numbers.into_iter().map(|number| number as f32).collect();
            }
            ("FP32", Data::Numbers(numbers)) => {
                contents.fp32_contents = numbers.into_iter().map(|number| number as f32).collect();
            }
            ("FP64", Data::Integers(numbers)) => {
                contents.fp64_contents = numbers.into_iter().map(|number| number as f64).collect();
            }
            ("FP64", Data::Numbers(numbers)) => contents.fp64_contents = numbers,
            (_, Data::Flags(_)) => return Err(unfit("true and false")),
            (_, Data::Texts(_)) => return Err(unfit("texts")),
            (_, Data::Integers(_) | Data::Numbers(_)) => return Err(unfit("numbers")),
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Data, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_within_lists_are_read_in_order() {
        assert_eq!(read("[[1, 2], [3, -4]]"), Ok(Data::Integers(vec![1, 2, 3, -4])));
        assert_eq!(read("[1, [2.5], []]"), Ok(Data::Numbers(vec![1.0, 2.5])));
        assert_eq!(read(r#"[["a"], ["b\n"]]"#), Ok(Data::Texts(vec!["a".into(), "b\n".into()])));
        assert_eq!(read("[true, [false]]"), Ok(Data::Flags(vec![true, false])));
        assert_eq!(read("[[], []]"), Ok(Data::None));
    }

    #[test]
    fn what_is_no_tensor_is_refused() {
        let deep = "[".repeat(100_000);
        let many = format!("[{}\"\"]", "\"\",".repeat(TEXTS_MAX));
        let wrong = [
            "1",
            "\"a\"",
            "{}",
            "[1, \"a\"]",
            "[\"a\", 1]",
            "[true, 1]",
            "[null]",
            "[{\"a\": 1}]",
            "[1, {}]",
            "[9223372036854775808]",
            "[[[[[[[[[1]]]]]]]]]",
            "[1",
            deep.as_str(),
            many.as_str(),
        ];
        for text in wrong {
            assert!(read(text).is_err(), "{}", &text[..text.len().min(40)]);
        }
    }

    #[test]
    fn elements_go_where_their_datatype_has_them() {
        let check = |text: &str, datatype: &str| read(text).unwrap().into_contents("inputs['x']", datatype);
        assert_eq!(check("[1, 2]", "INT64").unwrap().int64_contents, [1, 2]);
        assert_eq!(check("[1, 2]", "FP32").unwrap().fp32_contents, [1.0, 2.0]);
        assert_eq!(check("[0.5]", "FP64").unwrap().fp64_contents, [0.5]);
        assert_eq!(check("[\"é\"]", "BYTES").unwrap().bytes_contents, ["é"]);
        for (text, datatype) in [
            ("[1]", "BYTES"),
            ("[\"a\"]", "INT64"),
            ("[0.5]", "INT64"),
            ("[true]", "INT32"),
            ("[1]", "BOOL"),
            ("[2147483648]", "INT32"),
            ("[-1]", "UINT32"),
            ("[-1]", "UINT64"),
            ("[1]", "FP16"),
        ] {
            assert!(check(text, datatype).is_err(), "{text} {datatype}");
        }
    }
}
