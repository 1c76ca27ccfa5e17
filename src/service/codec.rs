//! Messages of gRPC, refused where what they say would take far more memory than they do, and where the streams that are open
//! hold too much already.

use std::marker::PhantomData;

use prost::bytes::Buf;
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::carried::{Carried, Share};
use super::errors::Problem;
use super::fields::{self, Excess, FIELDS_MAX, NUMBERS_MAX};
use super::schema::{Layout, SCHEMA};

/// Protobuf with a bound on what a message becomes.
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> BoundedCodec<T, U> {
        BoundedCodec(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Name + Default + Send + 'static> Codec for BoundedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder {
            decoder: ProstDecoder::new(BufferSettings::default()),
            layout: SCHEMA.sent(&U::full_name()),
            share: Carried::current().map(|carried| carried.share()),
        }
    }
}

/// Reads a message after what it holds was counted. The transport keeps the memory of its largest message as long as it keeps
/// this.
pub(crate) struct BoundedDecoder<U> {
    decoder: ProstDecoder<U>,
    layout: Option<&'static Layout>,
    /// Of a stream: in any other call nothing is kept.
    share: Option<Share>,
}

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        fields::check(message.chunk(), self.layout).map_err(|excess| {
            let text = match excess {
                Excess::Fields => format!("it has more than {FIELDS_MAX} fields: send it in parts"),
                Excess::Numbers => {
                    format!("it has more than {NUMBERS_MAX} numbers: send it in parts, or them as raw contents")
                }
            };
            Problem::invalid("message", text)
        })?;
        if let Some(share) = &mut self.share {
            share.grow_to(message.remaining() as u64)?;
        }
        self.decoder.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.decoder.buffer_settings()
    }
}
