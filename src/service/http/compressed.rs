//! Messages that are sent compressed. What they become is bounded as what is sent plainly is: a megabyte of zeros is a
//! kilobyte here.

use std::io::{self, Read};

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use crate::service::aside::aside;
use crate::service::errors::Problem;
use crate::units;

/// Room for the next bytes of a message, before it is known how many there are.
const PIECE: usize = 16 << 10;

/// What was done to a message before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Deflate,
}

impl Compression {
    /// As the headers say.
    pub(super) fn of(headers: &HeaderMap) -> Result<Compression, Problem> {
        let mut said = headers.get_all(CONTENT_ENCODING).iter();
        let (Some(only), None) = (said.next(), said.next()) else {
            return match headers.contains_key(CONTENT_ENCODING) {
                true => Err(Problem::invalid("header 'content-encoding'", "it is there twice: compress once")),
                false => Ok(Compression::None),
            };
        };
        match only.as_bytes().trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Ok(Compression::None),
            b"gzip" | b"x-gzip" => Ok(Compression::Gzip),
            b"deflate" => Ok(Compression::Deflate),
            _ => {
                let text = format!("it is {only:?}; there are: gzip, deflate, identity");
                Err(Problem::invalid("header 'content-encoding'", text))
            }
        }
    }

    /// The message as it was before.
    pub(super) async fn undo(self, sent: Bytes, limit: units::Bytes) -> Result<Bytes, Problem> {
        if self == Compression::None {
            return Ok(sent);
        }
        // Always: how long it takes only shows on the way.
        aside(true, move || self.unpack(&sent, limit)).await?
    }

    fn unpack(self, sent: &[u8], limit: units::Bytes) -> Result<Bytes, Problem> {
        let unpacked = match self {
            Compression::None => Ok(sent.to_vec()),
            Compression::Gzip => gunzip(sent, limit),
            Compression::Deflate => inflate(sent, limit),
        };
        match unpacked {
            Ok(unpacked) if unpacked.len() as u64 > limit.get() => Err(Problem::MessageTooLarge { limit }),
            Ok(unpacked) => Ok(unpacked.into()),
            Err(error) => Err(Problem::invalid("body", format!("it is not what its content-encoding says: {error}"))),
        }
    }
}

/// Everything, or one byte more than the limit.
fn gunzip(sent: &[u8], limit: units::Bytes) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(sent).take(limit.get().saturating_add(1)).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// The same of what the name deflate stands for over HTTP: zlib's format. Its reader passes over a missing end in silence.
fn inflate(sent: &[u8], limit: units::Bytes) -> io::Result<Vec<u8>> {
    let (mut decoder, mut unpacked) = (Decompress::new(true), Vec::new());
    loop {
        let before = (decoder.total_in(), unpacked.len());
        unpacked.reserve(PIECE);
        let left = &sent[decoder.total_in() as usize..];
        let status = decoder.decompress_vec(left, &mut unpacked, FlushDecompress::None)?;
        if status == Status::StreamEnd || unpacked.len() as u64 > limit.get() {
            return Ok(unpacked);
        }
        if before == (decoder.total_in(), unpacked.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression as Level;
    use flate2::read::{GzEncoder, ZlibEncoder};

    use super::*;

    fn packed(mut encoder: impl Read) -> Vec<u8> {
        let mut packed = Vec::new();
        encoder.read_to_end(&mut packed).unwrap();
        packed
    }

    #[test]
    fn what_is_unpacked_is_bounded() {
        let (plain, limit) = (vec![7; 1000], units::Bytes::new(1000));
        let gzip = packed(GzEncoder::new(plain.as_slice(), Level::fast()));
        let zlib = packed(ZlibEncoder::new(plain.as_slice(), Level::fast()));
        for (compression, packed) in [(Compression::Gzip, &gzip), (Compression::Deflate, &zlib)] {
            assert_eq!(compression.unpack(packed, limit), Ok(plain.clone().into()));
            let less = units::Bytes::new(999);
            assert_eq!(compression.unpack(packed, less), Err(Problem::MessageTooLarge { limit: less }));
            for broken in [&packed[..packed.len() / 2], &plain[..], &b""[..]] {
                let told = compression.unpack(broken, limit);
                assert!(matches!(told, Err(Problem::Invalid { .. })), "{compression:?} {told:?}");
            }
        }
        // Several pieces, each compressed by itself, are one message.
        let twice = Compression::Gzip.unpack(&gzip.repeat(2), units::Bytes::new(2000));
        assert_eq!(twice.map(|unpacked| unpacked.len()), Ok(2000));
    }

    #[test]
    fn headers_name_what_can_be_undone() {
        let said = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, value.parse().unwrap());
            }
            Compression::of(&headers).ok()
        };
        assert_eq!(said(&[]), Some(Compression::None));
        assert_eq!(said(&["identity"]), Some(Compression::None));
        assert_eq!(said(&["GZIP"]), Some(Compression::Gzip));
        assert_eq!(said(&["deflate"]), Some(Compression::Deflate));
        assert_eq!(said(&["br"]), None);
        assert_eq!(said(&["gzip, gzip"]), None);
        assert_eq!(said(&["gzip", "gzip"]), None);
    }
}
