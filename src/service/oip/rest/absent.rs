//! `null` for what may be left out says the same as leaving it out: clients write their messages with all fields.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// What is there, or nothing in particular.
pub(super) fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(field: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// Values by name, without those that are `null`.
#[derive(Clone, Debug)]
pub(super) struct Given<T>(pub(super) HashMap<String, T>);

impl<T> Default for Given<T> {
    fn default() -> Given<T> {
        Given(HashMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given<T>, D::Error> {
        deserializer.deserialize_map(Map(PhantomData))
    }
}

struct Map<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
    type Value = Given<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("values by their names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given<T>, A::Error> {
        let mut given = HashMap::new();
        while let Some((name, value)) = map.next_entry::<String, Option<T>>()? {
            match value {
                Some(value) => given.insert(name, value),
                None => given.remove(&name),
            };
        }
        Ok(Given(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize)]
    struct Message {
        #[serde(default, deserialize_with = "or_default")]
        count: u32,
        #[serde(default, deserialize_with = "or_default")]
        names: Given<u32>,
    }

    #[test]
    fn null_is_nothing() {
        for (text, count, names) in [
            ("{}", 0, 0),
            (r#"{"count": null, "names": null}"#, 0, 0),
            (r#"{"count": 2, "names": {"a": null}}"#, 2, 0),
            (r#"{"names": {"a": null, "b": 1}}"#, 0, 1),
        ] {
            let read: Message = serde_json::from_str(text).unwrap();
            assert_eq!((read.count, read.names.0.len()), (count, names), "{text}");
        }
        for text in [r#"{"count": "1"}"#, r#"{"names": []}"#, r#"{"names": {"a": "b"}}"#] {
            assert!(serde_json::from_str::<Message>(text).is_err(), "{text}");
        }
    }
}
