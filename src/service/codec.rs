//! Messages of gRPC, refused where what they say would take far more memory than they do: a field without contents has
//! two bytes on the wire, and a tensor without contents a few hundred here.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::errors::Problem;

/// Fields of a message, repeated ones by their elements; those of the messages in it are not counted. Raising it costs
/// 40 MiB of host memory for each call in flight and each time it is doubled.
const FIELDS_MAX: usize = 1 << 17;

/// Protobuf with a bound on the fields of what is read.
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> BoundedCodec<T, U> {
        BoundedCodec(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for BoundedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(ProstDecoder::new(BufferSettings::default()))
    }
}

/// Reads a message after its fields were counted.
pub(crate) struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if !fields_fit(message.chunk()) {
            let text = format!("it has more than {FIELDS_MAX} fields: send it in parts");
            return Err(Problem::invalid("message", text).into());
        }
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Whether the message has at most as many fields as one may have. What is wrong with it otherwise, its decoder says.
fn fields_fit(mut message: &[u8]) -> bool {
    for _ in 0..FIELDS_MAX {
        if !message.has_remaining() {
            return true;
        }
        let skipped = decode_key(&mut message)
            .and_then(|(tag, wire_type)| skip_field(wire_type, tag, &mut message, DecodeContext::default()));
        if skipped.is_err() {
            return true;
        }
    }
    !message.has_remaining()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_to_the_most_that_there_may_be() {
        let empty = [0x2a, 0];
        assert!(fields_fit(&[]));
        assert!(fields_fit(&empty.repeat(FIELDS_MAX)));
        assert!(!fields_fit(&empty.repeat(FIELDS_MAX + 1)));
        // Not a message from its third byte on.
        assert!(fields_fit(&[0x2a, 0, 0x07]));
        assert!(fields_fit(&[0x3a, 0xff, 0xff, 0x03, 1]));
    }
}
