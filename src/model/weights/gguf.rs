//! Headers of GGUF files.
//!
//! A reader of our own because every count and length in the file is checked against the bytes that are left before
//! anything is allocated for it: a hostile header costs no more memory than its own size.

use std::collections::BTreeMap;

use super::{Encoding, Stored, TENSORS_MAX};
use crate::model::error::ModelError;
use crate::model::files::Source;

/// Metadata of a tokenizer of 250,000 pieces is about 8 MiB.
const HEADER_BYTES_MAX: u64 = 64 << 20;
const NAME_BYTES_MAX: u64 = 256;
const DIMENSIONS_MAX: u32 = 4;
const ALIGNMENT_DEFAULT: u64 = 32;

pub(super) fn read_header(place: &str, source: &Source) -> Result<BTreeMap<String, Stored>, ModelError> {
    let mut header = vec![0; source.len().min(HEADER_BYTES_MAX) as usize];
    source.read_at(&mut header, 0).map_err(|error| ModelError::unreadable(place, error))?;
    let mut cursor = Cursor { place, bytes: &header, at: 0 };
    let magic = cursor.take(4)?;
    if magic != b"GGUF" {
        return Err(ModelError::invalid(place, format!("a file that begins with {magic:02x?}"), "'GGUF'"));
    }
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        return Err(ModelError::invalid(place, format!("GGUF version {version}"), "2 or 3"));
    }
    let tensor_count = cursor.count("tensors", TENSORS_MAX as u64)?;
    let pair_count = cursor.count("metadata entries", TENSORS_MAX as u64)?;
    let mut alignment = ALIGNMENT_DEFAULT;
    for _ in 0..pair_count {
        let key = cursor.string(NAME_BYTES_MAX)?;
        let kind = cursor.u32()?;
        match (key.as_str(), kind) {
            ("general.alignment", UINT32) => alignment = u64::from(cursor.u32()?),
            _ => cursor.skip_value(kind)?,
        }
    }
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(ModelError::invalid(place, format!("an alignment of {alignment}"), "a power of two up to 1 MiB"));
    }
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(cursor.tensor_info()?);
    }
    let data = (cursor.at as u64).next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for info in infos {
        let at = format!("{place}: tensor '{}'", info.name);
        let stored = info.stored(&at, data, source.len())?;
        if tensors.insert(info.name, stored).is_some() {
            return Err(ModelError::invalid(at, "the name twice", "each name once"));
        }
    }
    Ok(tensors)
}

const UINT32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

struct Info {
    name: String,
    /// As in the file: fastest first.
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Info {
    fn stored(&self, at: &str, data: u64, file_len: u64) -> Result<Stored, ModelError> {
        let encoding = match self.kind {
            0 => Encoding::F32,
            1 => Encoding::F16,
            8 => Encoding::Q8,
            30 => Encoding::Bf16,
            2 => Encoding::Other("Q4_0"),
            3 => Encoding::Other("Q4_1"),
            10..=15 => Encoding::Other("a K-quant"),
            _ => Encoding::Other("an encoding of another kind"),
        };
        let invalid_shape = || {
            let found = format!("the dimensions {:?}", self.dimensions);
            ModelError::invalid(at, found, "dimensions that memory can hold, the first a multiple of 32 for Q8_0")
        };
        let elements = self.dimensions.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let elements = elements.ok_or_else(invalid_shape)?;
        let row = self.dimensions.first().copied().unwrap_or(1);
        let offset = data.checked_add(self.offset);
        if !matches!(encoding, Encoding::Other(_)) {
            encoding.bytes(row).ok_or_else(invalid_shape)?;
            let bytes = encoding.bytes(elements).ok_or_else(invalid_shape)?;
            let end = offset.and_then(|from| from.checked_add(bytes));
            if end.is_none_or(|end| end > file_len) {
                let found = format!("{bytes} bytes from {} of the data on", self.offset);
                return Err(ModelError::invalid(at, found, format!("an extent inside the file's {file_len} bytes")));
            }
        }
        let shape = self.dimensions.iter().rev().map(|&size| usize::try_from(size)).collect::<Result<_, _>>();
        Ok(Stored { file: 0, encoding, shape: shape.map_err(|_| invalid_shape())?, offset: offset.unwrap_or(0) })
    }
}

struct Cursor<'a> {
    place: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], ModelError> {
        let left = self.bytes.len() - self.at;
        let Some(count) = usize::try_from(count).ok().filter(|&count| count <= left) else {
            let found = format!("a header that needs {count} bytes more at byte {}", self.at);
            return Err(ModelError::invalid(self.place, found, format!("{left} bytes, which is all there is")));
        };
        let part = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(part)
    }

    fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("take gave 4 bytes")))
    }

    fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("take gave 8 bytes")))
    }

    fn count(&mut self, what: &str, most: u64) -> Result<u64, ModelError> {
        match self.u64()? {
            count if count <= most => Ok(count),
            count => Err(ModelError::invalid(self.place, format!("{count} {what}"), format!("at most {most}"))),
        }
    }

    fn string(&mut self, most: u64) -> Result<String, ModelError> {
        let length = self.count("bytes in a name", most)?;
        String::from_utf8(self.take(length)?.to_vec())
            .map_err(|_| ModelError::invalid(self.place, "a name that is not UTF-8", "UTF-8"))
    }

    fn skip_value(&mut self, kind: u32) -> Result<(), ModelError> {
        match kind {
            STRING => {
                let length = self.u64()?;
                self.take(length)?;
            }
            ARRAY => {
                let element = self.u32()?;
                let count = self.u64()?;
                match scalar_bytes(element) {
                    Some(size) => {
                        self.take(count.saturating_mul(size))?;
                    }
                    // Each string takes at least its length's 8 bytes, so the loop ends with the header.
                    None if element == STRING => {
                        for _ in 0..count {
                            self.skip_value(STRING)?;
                        }
                    }
                    None => return Err(self.unknown_kind(element)),
                }
            }
            _ => {
                let size = scalar_bytes(kind).ok_or_else(|| self.unknown_kind(kind))?;
                self.take(size)?;
            }
        }
        Ok(())
    }

    fn unknown_kind(&self, kind: u32) -> ModelError {
        ModelError::invalid(self.place, format!("metadata of type {kind}"), "the types 0 to 12, arrays not nested")
    }

    fn tensor_info(&mut self) -> Result<Info, ModelError> {
        let name = self.string(NAME_BYTES_MAX)?;
        let rank = self.u32()?;
        if rank > DIMENSIONS_MAX {
            let at = format!("{}: tensor '{name}'", self.place);
            return Err(ModelError::invalid(at, format!("{rank} dimensions"), format!("at most {DIMENSIONS_MAX}")));
        }
        let dimensions = (0..rank).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(Info { name, dimensions, kind: self.u32()?, offset: self.u64()? })
    }
}

/// Bytes of a metadata value of fixed size.
fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
