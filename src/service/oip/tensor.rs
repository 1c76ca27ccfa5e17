//! One input tensor of the wire, checked: its datatype, its shape, and that its contents are as many as the shape says.

use prost::bytes::{Buf, Bytes};

use super::parameters::Value;
use crate::service::errors::Problem;
use crate::service::proto::inference::InferTensorContents;
use crate::service::proto::inference::model_infer_request::InferInputTensor;

/// Datatypes of the protocol with the bytes of one element; BYTES have a length of their own each.
const DATATYPES: [(&str, Option<usize>); 14] = [
    ("BOOL", Some(1)),
    ("UINT8", Some(1)),
    ("UINT16", Some(2)),
    ("UINT32", Some(4)),
    ("UINT64", Some(8)),
    ("INT8", Some(1)),
    ("INT16", Some(2)),
    ("INT32", Some(4)),
    ("INT64", Some(8)),
    ("FP16", Some(2)),
    ("FP32", Some(4)),
    ("FP64", Some(8)),
    ("BF16", Some(2)),
    ("BYTES", None),
];

/// Bytes of the length before each element of raw BYTES.
const PREFIX: usize = 4;

/// A tensor whose datatype is of the protocol and whose contents fit its shape.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// How errors name it: `inputs['TEXT']`.
    pub(crate) field: String,
    pub(crate) name: String,
    pub(crate) datatype: &'static str,
    pub(crate) shape: Vec<usize>,
    elements: usize,
    contents: Contents,
}

#[derive(Clone, Debug)]
enum Contents {
    Raw(Bytes),
    Typed(InferTensorContents),
}

impl Tensor {
    /// Checks one input and the blob that belongs to it, if the request has blobs.
    pub(crate) fn read(input: InferInputTensor, raw: Option<Bytes>) -> Result<Tensor, Problem> {
        let field = format!("inputs['{}']", input.name);
        let invalid = |text: String| Problem::invalid(field.clone(), text);
        for (name, parameter) in &input.parameters {
            if name.starts_with("shared_memory_") {
                let text = "shared memory is not offered: send the tensor's contents in the request";
                return Err(Problem::NotOffered(text));
            }
            let value = Value { of: &field, name, choice: parameter.parameter_choice.as_ref() };
            if !value.is_theirs()? {
                return Err(value.invalid("it is not known; there is: content_type"));
            }
        }
        let Some((datatype, size)) = DATATYPES.into_iter().find(|(name, _)| *name == input.datatype) else {
            let known: Vec<_> = DATATYPES.iter().map(|(name, _)| *name).collect();
            return Err(invalid(format!("the datatype is '{}'; there are: {}", input.datatype, known.join(", "))));
        };
        let mut shape = Vec::with_capacity(input.shape.len());
        for dimension in &input.shape {
            let found = usize::try_from(*dimension);
            shape.push(found.map_err(|_| invalid(format!("the shape {:?} has a negative dimension", input.shape)))?);
        }
        // The bytes are checked together with the elements, so that no later product of these can overflow.
        let elements = shape.iter().try_fold(1usize, |product, dimension| product.checked_mul(*dimension));
        let sized = elements.filter(|elements| elements.checked_mul(size.unwrap_or(PREFIX)).is_some());
        let Some(elements) = sized else {
            return Err(invalid(format!("the shape {:?} has more elements than can be counted", input.shape)));
        };
        let contents = match (raw, input.contents) {
            (Some(_), Some(typed)) if filled(&typed).next().is_some() => {
                return Err(invalid(
                    "it has typed contents and a blob in raw_input_contents: send one of them".to_owned(),
                ));
            }
            (Some(raw), _) => {
                let needed = size.map(|size| elements * size);
                if needed.is_some_and(|needed| needed != raw.len()) {
                    return Err(invalid(format!(
                        "the blob has {} bytes and the shape {:?} of {datatype} takes {}",
                        raw.len(),
                        input.shape,
                        needed.unwrap_or_default(),
                    )));
                }
                Contents::Raw(raw)
            }
            (None, typed) => {
                let typed = typed.unwrap_or_default();
                check_typed(&field, datatype, &typed, elements)?;
                Contents::Typed(typed)
            }
        };
        Ok(Tensor { field, name: input.name, datatype, shape, elements, contents })
    }

    /// The elements of a BYTES tensor as text.
    pub(crate) fn into_texts(self) -> Result<Vec<String>, Problem> {
        let field = self.field;
        if self.datatype != "BYTES" {
            return Err(Problem::invalid(field, format!("its datatype is {} and has to be BYTES", self.datatype)));
        }
        let elements = match self.contents {
            Contents::Typed(typed) => typed.bytes_contents,
            Contents::Raw(raw) => split_raw(&field, raw, self.elements)?,
        };
        let utf8 = |(row, bytes): (usize, Bytes)| {
            String::from_utf8(bytes.into()).map_err(|error| {
                let at = error.utf8_error().valid_up_to();
                Problem::invalid(format!("{field}[{row}]"), format!("the text is not UTF-8 from byte {at} on"))
            })
        };
        elements.into_iter().enumerate().map(utf8).collect()
    }

    /// The elements of an INT32 or INT64 tensor.
    pub(crate) fn into_integers(self) -> Result<Vec<i64>, Problem> {
        match (self.datatype, self.contents) {
            ("INT64", Contents::Typed(typed)) => Ok(typed.int64_contents),
            ("INT32", Contents::Typed(typed)) => Ok(typed.int_contents.into_iter().map(i64::from).collect()),
            ("INT64", Contents::Raw(raw)) => {
                Ok(raw.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
            }
            ("INT32", Contents::Raw(raw)) => {
                Ok(raw.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
            }
            (other, _) => {
                Err(Problem::invalid(self.field, format!("its datatype is {other} and has to be INT64 or INT32")))
            }
        }
    }
}

/// The typed fields that hold something, with how many.
fn filled(typed: &InferTensorContents) -> impl Iterator<Item = (&'static str, usize)> {
    [
        ("bool_contents", typed.bool_contents.len()),
        ("int_contents", typed.int_contents.len()),
        ("int64_contents", typed.int64_contents.len()),
        ("uint_contents", typed.uint_contents.len()),
        ("uint64_contents", typed.uint64_contents.len()),
        ("fp32_contents", typed.fp32_contents.len()),
        ("fp64_contents", typed.fp64_contents.len()),
        ("bytes_contents", typed.bytes_contents.len()),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
}

fn check_typed(field: &str, datatype: &str, typed: &InferTensorContents, elements: usize) -> Result<(), Problem> {
    let home = match datatype {
        "BOOL" => "bool_contents",
        "INT8" | "INT16" | "INT32" => "int_contents",
        "INT64" => "int64_contents",
        "UINT8" | "UINT16" | "UINT32" => "uint_contents",
        "UINT64" => "uint64_contents",
        "FP32" => "fp32_contents",
        "FP64" => "fp64_contents",
        "BYTES" => "bytes_contents",
        other => return Err(Problem::invalid(field, format!("{other} has no typed contents: use raw_input_contents"))),
    };
    if let Some((stray, count)) = filled(typed).find(|(name, _)| *name != home) {
        return Err(Problem::invalid(
            field,
            format!("{count} elements are in {stray}; those of {datatype} go into {home}"),
        ));
    }
    let found = filled(typed).map(|(_, count)| count).sum::<usize>();
    if found != elements {
        return Err(Problem::invalid(field, format!("{home} has {found} elements and the shape takes {elements}")));
    }
    Ok(())
}

/// The elements of raw BYTES: each a length of 4 bytes, little-endian, and as many bytes.
fn split_raw(field: &str, mut raw: Bytes, count: usize) -> Result<Vec<Bytes>, Problem> {
    // Each element takes its prefix at least: a hostile count cannot make us reserve more than the blob justifies.
    let mut elements = Vec::with_capacity(count.min(raw.len() / PREFIX));
    for row in 0..count {
        let place = || format!("{field}[{row}]");
        if raw.len() < PREFIX {
            let text = format!("the blob ends in the element's length: {} bytes are left of {PREFIX}", raw.len());
            return Err(Problem::invalid(place(), text));
        }
        let length = raw.get_u32_le() as usize;
        if length > raw.len() {
            let text = format!("its length says {length} bytes and the blob has {} left", raw.len());
            return Err(Problem::invalid(place(), text));
        }
        elements.push(raw.split_to(length));
    }
    if !raw.is_empty() {
        let text = format!("the blob has {} bytes after the last of {count} elements", raw.len());
        return Err(Problem::invalid(field, text));
    }
    Ok(elements)
}
