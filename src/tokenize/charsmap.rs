//! A look at what the tokenizers library would allocate before it reads it: the maps of characters of SentencePiece, which
//! begin with a length that it believes.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The key of a map wherever it is in a `tokenizer.json`; its value is base64.
const KEY: &str = "precompiled_charsmap";

/// Checks every map in `json`.
///
/// # Errors
/// It is no JSON, or a map says that it is longer than it is.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    Anything { is_map: false }.deserialize(&mut reader).map_err(|error| error.to_string())
}

/// Any value; a map of characters, if the key before it said so.
#[derive(Clone, Copy)]
struct Anything {
    is_map: bool,
}

impl<'de> DeserializeSeed<'de> for Anything {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Anything {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        // Eight letters are six bytes: the length of the map's first part is four, little-endian. What is shorter or no
        // base64 the library refuses.
        let begin = text.as_bytes().get(..8).and_then(|begin| BASE64_STANDARD.decode(begin).ok());
        match begin.as_deref().and_then(<[u8]>::first_chunk) {
            Some(said) if self.is_map && u32::from_le_bytes(*said) as usize > text.len() => {
                Err(E::custom(format!("{KEY} says that it has {} bytes", u32::from_le_bytes(*said))))
            }
            _ => Ok(()),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Key)? {
            map.next_value_seed(key)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Anything { is_map: false })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A key, which says how to read its value.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Anything;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Anything, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Anything;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Anything, E> {
        Ok(Anything { is_map: key == KEY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_as_long_as_it_says() {
        let map =
            |length: u32, rest: usize| BASE64_STANDARD.encode([&length.to_le_bytes()[..], &vec![0; rest]].concat());
        let check = |map: &str| {
            let inner = format!(r#"{{"type": "Precompiled", "precompiled\u005fcharsmap": "{map}"}}"#);
            check(
                format!(r#"{{"a": [1, -1, 0.5, null, true], "normalizer": {{"normalizers": [{inner}]}}}}"#).as_bytes(),
            )
        };
        for sound in [map(0, 0), map(8, 8), map(8, 100), String::new(), "AA".into(), "?".repeat(20)] {
            assert_eq!(check(&sound), Ok(()), "{sound}");
        }
        for short in [map(u32::MAX, 100), map(1000, 0)] {
            let error = check(&short).unwrap_err();
            assert!(error.contains("precompiled_charsmap says"), "{error}");
        }
        // Under another key it is a text.
        assert_eq!(super::check(format!(r#"["{}"]"#, map(u32::MAX, 0)).as_bytes()), Ok(()));
    }
}
