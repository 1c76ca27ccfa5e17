//! Q8_0: blocks of 32 weights as a f16 scale and 32 signed bytes, the format of GGUF files.

use half::f16;

/// Weights in a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a block: the scale, little-endian, then the weights.
pub(crate) const BLOCK_BYTES: usize = 2 + BLOCK;

/// Appends the blocks of `values`, whose number is a multiple of [`BLOCK`]; `false` when a scale is outside f16.
/// The largest magnitude of a block becomes 127, so the error of a weight is at most 1/254 of it, and half a unit
/// of the scale's own rounding.
pub(crate) fn encode(values: &[f32], blocks: &mut Vec<u8>) -> bool {
    debug_assert_eq!(values.len() % BLOCK, 0);
    values.chunks_exact(BLOCK).all(|block| {
        let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let scale = f16::from_f32(largest / 127.0);
        // The bytes are chosen for the scale as it is stored. A rounded-down scale could ask for 128: clamp.
        let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
        blocks.extend_from_slice(&scale.to_le_bytes());
        blocks.extend(block.iter().map(|value| (value * inverse).round().clamp(-127.0, 127.0) as i8 as u8));
        scale.is_finite()
    })
}

/// The values of `blocks`; `values` is as long as they need.
pub(crate) fn decode(blocks: &[u8], values: &mut [f32]) {
    debug_assert_eq!(blocks.len() / BLOCK_BYTES * BLOCK, values.len());
    for (block, values) in blocks.chunks_exact(BLOCK_BYTES).zip(values.chunks_exact_mut(BLOCK)) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (value, byte) in values.iter_mut().zip(&block[2..]) {
            *value = f32::from(*byte as i8) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_is_within_a_step_of_what_was_encoded() {
        let values: Vec<f32> = (0..96).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        let mut blocks = Vec::new();
        assert!(encode(&values, &mut blocks));
        assert_eq!(blocks.len(), 3 * BLOCK_BYTES);
        let mut back = vec![0.0; 96];
        decode(&blocks, &mut back);
        for (block, back) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
            let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            for (value, back) in block.iter().zip(back) {
                assert!((value - back).abs() <= largest / 254.0 * 1.13, "{value} became {back}");
            }
        }
        let mut again = Vec::new();
        assert!(encode(&back, &mut again));
        assert_eq!(blocks, again, "encoding what was decoded changes nothing");
    }

    #[test]
    fn zeros_and_scales_outside_f16() {
        let mut blocks = Vec::new();
        assert!(encode(&[0.0; 32], &mut blocks));
        let mut back = vec![1.0; 32];
        decode(&blocks, &mut back);
        assert_eq!(back, vec![0.0; 32]);
        assert!(!encode(&[1e9; 32], &mut blocks));
    }
}
