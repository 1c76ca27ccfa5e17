//! Headers of safetensors files and the index of a sharded model.
//!
//! The header is parsed here and not by the `safetensors` crate, which wants the whole file in memory: at this point
//! only the header may be read. The checks are its: extents inside the file, without gaps or overlaps, as many bytes
//! as the shape needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{Encoding, Stored, TENSORS_MAX};
use crate::model::error::ModelError;
use crate::model::files::{ModelFiles, Source};

/// A header of 65,536 tensors is about 8 MiB.
const HEADER_BYTES_MAX: u64 = 32 << 20;
/// An index has one short line for each tensor, which takes ten times its bytes once it is read.
const INDEX_BYTES_MAX: u64 = 8 << 20;

/// No tensor here has more: a shape of millions of sizes is not worth its memory.
const DIMENSIONS_MAX: usize = 8;

/// What a header says of each tensor. Read one by one: whatever else a header holds takes no memory.
struct Entries {
    entries: BTreeMap<String, Entry>,
    /// With those beyond the most that are kept.
    count: usize,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct OfHeader;

        impl<'de> Visitor<'de> for OfHeader {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut read = Entries { entries: BTreeMap::new(), count: 0 };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    read.count += 1;
                    if read.count > TENSORS_MAX {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let named = |error: A::Error| A::Error::custom(format_args!("tensor '{name}': {error}"));
                        let entry = map.next_value().map_err(named)?;
                        read.entries.insert(name, entry);
                    }
                }
                Ok(read)
            }
        }

        deserializer.deserialize_map(OfHeader)
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

pub(super) fn read_header(place: &str, source: &Source) -> Result<BTreeMap<String, Stored>, ModelError> {
    let unreadable = |error: std::io::Error| ModelError::unreadable(place, error);
    let invalid = |found: String, allowed: &str| ModelError::invalid(place, found, allowed);
    if source.len() < 8 {
        return Err(invalid(format!("{} bytes", source.len()), "a safetensors file, which has at least 8"));
    }
    let mut length = [0; 8];
    source.read_at(&mut length, 0).map_err(unreadable)?;
    let length = u64::from_le_bytes(length);
    let most = HEADER_BYTES_MAX.min(source.len() - 8);
    if length > most {
        let allowed = format!("at most {most}: the file has {} bytes and no header needs more", source.len());
        return Err(invalid(format!("a header of {length} bytes"), &allowed));
    }
    let mut header = vec![0; length as usize];
    source.read_at(&mut header, 8).map_err(unreadable)?;
    let Entries { entries, count } = serde_json::from_slice(&header).map_err(|error| {
        let allowed = "dtype, shape and data_offsets of each tensor";
        invalid(format!("a header that is not a JSON object of tensors ({error})"), allowed)
    })?;
    drop(header);
    if count > TENSORS_MAX {
        return Err(invalid(format!("{count} tensors"), &format!("at most {TENSORS_MAX}")));
    }
    let data = 8 + length;
    let data_len = source.len() - data;
    let mut tensors = BTreeMap::new();
    let mut extents = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let at = format!("{place}: tensor '{name}'");
        if entry.shape.len() > DIMENSIONS_MAX {
            let found = format!("{} dimensions", entry.shape.len());
            return Err(ModelError::invalid(at, found, format!("at most {DIMENSIONS_MAX}")));
        }
        let [from, to] = entry.data_offsets;
        if from > to || to > data_len {
            let allowed = format!("a range inside the file's {data_len} bytes of data");
            return Err(ModelError::invalid(at, format!("bytes {from}..{to}"), allowed));
        }
        let stored = stored(&at, &entry, data + from)?;
        extents.push((from, to));
        tensors.insert(name, stored);
    }
    extents.sort_unstable();
    let end = extents.iter().try_fold(0, |end, &(from, to)| (from == end).then_some(to));
    if end != Some(data_len) {
        return Err(invalid("tensors with gaps or overlaps between them".into(), "tensors that fill the file exactly"));
    }
    Ok(tensors)
}

fn stored(at: &str, entry: &Entry, offset: u64) -> Result<Stored, ModelError> {
    let encoding = match entry.dtype.as_str() {
        "F32" => Encoding::F32,
        "F16" => Encoding::F16,
        "BF16" => Encoding::Bf16,
        "I64" => Encoding::Other("I64"),
        "I32" => Encoding::Other("I32"),
        "U8" => Encoding::Other("U8"),
        "BOOL" => Encoding::Other("BOOL"),
        _ => Encoding::Other("an encoding of another kind"),
    };
    let elements = entry.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    let shape = entry.shape.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
    let (Some(elements), Ok(shape)) = (elements, shape) else {
        return Err(ModelError::invalid(at, format!("the shape {:?}", entry.shape), "a shape that memory can hold"));
    };
    let bytes = entry.data_offsets[1] - entry.data_offsets[0];
    match encoding.bytes(elements) {
        Some(needed) if needed != bytes => {
            let found = format!("{bytes} bytes for the shape {:?} in {}", entry.shape, entry.dtype);
            Err(ModelError::invalid(at, found, format!("{needed} bytes")))
        }
        _ => Ok(Stored { file: 0, encoding, shape, offset }),
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The shards that an index names, sorted; `None` when there is no index.
pub(super) fn shards(files: &ModelFiles, index: &str) -> Result<Option<Vec<String>>, ModelError> {
    let Some(bytes) = files.read(index, INDEX_BYTES_MAX)? else { return Ok(None) };
    let place = files.place(index);
    let parsed: Index = serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::invalid(&*place, error, "a JSON object with 'weight_map'"))?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    if let Some(odd) = shards.iter().find(|name| !name.ends_with(".safetensors")) {
        return Err(ModelError::invalid(place, format!("the shard '{odd}'"), "names that end in .safetensors"));
    }
    if shards.is_empty() || shards.len() > 1024 {
        return Err(ModelError::invalid(place, format!("{} shards", shards.len()), "1 to 1024"));
    }
    Ok(Some(shards.into_iter().collect()))
}
