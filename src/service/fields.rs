//! What of a message would take far more memory than the message: a field without contents has two bytes on the wire, and a
//! tensor without contents a few hundred here; a number may have one byte there and has eight here.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::schema::{Holds, Layout, SCHEMA};

/// Fields of a message and of those in it that hold texts, bytes or messages, repeated ones by their elements. Raising it
/// costs 40 MiB of host memory for each call in flight and each time it is doubled.
pub(super) const FIELDS_MAX: usize = 1 << 17;

/// Numbers of a message and of those in it: three tensors of 1,024 rows of 8,192 tokens have fewer. Raising it costs 8 bytes
/// for each.
pub(super) const NUMBERS_MAX: usize = 1 << 25;

/// Messages within messages that are looked into; ours have fewer.
const DEPTH_MAX: usize = 16;

/// What a message has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    Fields,
    Numbers,
}

/// Whether the message has more than one may have. What is wrong with it otherwise, its decoder says. Without a layout
/// nothing in it is looked into.
pub(super) fn check(message: &[u8], layout: Option<&Layout>) -> Result<(), Excess> {
    Counted::default().add(message, layout, DEPTH_MAX)
}

#[derive(Debug, Default)]
struct Counted {
    fields: usize,
    numbers: usize,
}

impl Counted {
    fn add(&mut self, mut message: &[u8], layout: Option<&Layout>, depth: usize) -> Result<(), Excess> {
        while message.has_remaining() {
            let Ok((tag, wire_type)) = decode_key(&mut message) else { return Ok(()) };
            if wire_type != WireType::LengthDelimited {
                if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
                    return Ok(());
                }
                self.numbers(1)?;
                continue;
            }
            let Ok(length) = decode_varint(&mut message) else { return Ok(()) };
            let Some((inner, rest)) = usize::try_from(length).ok().and_then(|length| message.split_at_checked(length))
            else {
                return Ok(());
            };
            message = rest;
            match layout.and_then(|layout| layout.get(&tag)) {
                // The last byte of each is below 128.
                Some(Holds::Numbers) => self.numbers(inner.iter().filter(|byte| **byte < 0x80).count())?,
                Some(Holds::Message(number)) => {
                    self.field()?;
                    if depth > 0 {
                        self.add(inner, SCHEMA.layout(*number), depth - 1)?;
                    }
                }
                None => self.field()?,
            }
        }
        Ok(())
    }

    fn field(&mut self) -> Result<(), Excess> {
        self.fields += 1;
        if self.fields > FIELDS_MAX { Err(Excess::Fields) } else { Ok(()) }
    }

    fn numbers(&mut self, count: usize) -> Result<(), Excess> {
        self.numbers += count;
        if self.numbers > NUMBERS_MAX { Err(Excess::Numbers) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::service::proto::inference::model_infer_request::InferInputTensor;
    use crate::service::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};

    #[test]
    fn fields_are_counted_to_the_most_that_there_may_be() {
        let empty = [0x2a, 0];
        let fits = |message: &[u8]| check(message, None);
        assert_eq!(fits(&[]), Ok(()));
        assert_eq!(fits(&empty.repeat(FIELDS_MAX)), Ok(()));
        assert_eq!(fits(&empty.repeat(FIELDS_MAX + 1)), Err(Excess::Fields));
        // Not a message from its third byte on.
        assert_eq!(fits(&[0x2a, 0, 0x07]), Ok(()));
        assert_eq!(fits(&[0x3a, 0xff, 0xff, 0x03, 1]), Ok(()));
    }

    fn with(contents: InferTensorContents) -> ModelInferRequest {
        let input = InferInputTensor { contents: Some(contents), ..InferInputTensor::default() };
        ModelInferRequest { inputs: vec![input], ..ModelInferRequest::default() }
    }

    fn checked(message: &ModelInferRequest) -> Result<(), Excess> {
        check(&message.encode_to_vec(), SCHEMA.sent("inference.ModelInferRequest"))
    }

    #[test]
    fn fields_of_messages_within_are_counted() {
        let texts = |count| {
            let bytes_contents = vec![Default::default(); count];
            with(InferTensorContents { bytes_contents, ..InferTensorContents::default() })
        };
        // The input and its contents are two.
        assert_eq!(checked(&texts(FIELDS_MAX - 2)), Ok(()));
        assert_eq!(checked(&texts(FIELDS_MAX - 1)), Err(Excess::Fields));
        let parameters = (0..FIELDS_MAX).map(|number| (number.to_string(), InferParameter::default())).collect();
        let input = InferInputTensor { parameters, ..InferInputTensor::default() };
        let request = ModelInferRequest { inputs: vec![input], ..ModelInferRequest::default() };
        assert_eq!(checked(&request), Err(Excess::Fields));
    }

    #[test]
    fn numbers_are_counted_however_they_are_written() {
        let numbers = |count| with(InferTensorContents { int64_contents: vec![1; count], ..Default::default() });
        assert_eq!(checked(&numbers(NUMBERS_MAX)), Ok(()));
        assert_eq!(checked(&numbers(NUMBERS_MAX + 1)), Err(Excess::Numbers));
        // One by one, each behind its tag.
        assert_eq!(check(&[0x18, 1].repeat(NUMBERS_MAX + 1), None), Err(Excess::Numbers));
        // Those of a fixed size take no more here than there.
        let floats = with(InferTensorContents { fp32_contents: vec![1.0; 1 << 20], ..Default::default() });
        assert_eq!(checked(&floats), Ok(()));
    }
}
