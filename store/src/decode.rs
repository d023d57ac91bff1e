//! Decoding of rows, for whoever asks: the scheduler delivers bytes unchanged.
//!
//! Two rules, both of the published engines: FP8 with a power-of-two scale for every 32 values is multiplied in binary32 and rounded once
//! to bfloat16; FP8 with one scale for the table is multiplied as bfloat16 by bfloat16 and rounded once. Rounding is to nearest, ties to
//! even. Nothing here allocates.

use crate::error::StoreError;
use crate::format::{RowFormat, RowScale, ValueType};

/// What a scale byte of 0 means; engines differ, and 2^-127 is a subnormal that some flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScaleZero {
    /// 2^-127, as the format (and SGLang) has it.
    #[default]
    TwoToMinus127,
    /// Zero, as vLLM's and ATOM's kernels make it (the byte shifted into the exponent of a binary32).
    Zero,
}

/// An e4m3fn byte as binary32 (exact). 0x7f and 0xff are NaN; there are no infinities.
pub const fn f32_from_e4m3fn(byte: u8) -> f32 {
    let sign = (byte as u32 & 0x80) << 24;
    let (exponent, mantissa) = (byte as u32 >> 3 & 0xf, byte as u32 & 7);
    let bits = match (exponent, mantissa) {
        (15, 7) => 0x7FC0_0000,
        (0, 0) => 0,
        // Subnormal: mantissa x 2^-9, normalised for binary32.
        (0, m) => {
            let shift = m.leading_zeros() - 28; // 1..=3: how far the top bit is below the implicit one
            (127 - 6 - shift) << 23 | (m << shift & 7) << 20
        }
        (e, m) => (e + 127 - 7) << 23 | m << 20,
    };
    f32::from_bits(sign | bits)
}

/// All 256 e4m3fn values.
pub const E4M3FN: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = f32_from_e4m3fn(i as u8);
        i += 1;
    }
    table
};

/// A ue8m0 byte as binary32: 2^(byte - 127); 255 is NaN; 0 as `zero` says.
pub const fn f32_from_ue8m0(byte: u8, zero: ScaleZero) -> f32 {
    f32::from_bits(match (byte, zero) {
        (0, ScaleZero::Zero) => 0,
        (0, ScaleZero::TwoToMinus127) => 1 << 22,
        (255, _) => 0x7FC0_0000,
        (byte, _) => (byte as u32) << 23,
    })
}

/// A bfloat16 (bits) as binary32 (exact).
pub const fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// A binary32 rounded to bfloat16 (bits), to nearest, ties to even. NaN stays NaN (quiet), too large becomes infinite.
pub const fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16) as u16
}

/// Decodes a row to bfloat16 bits, one for each value.
///
/// `row` is a whole row of `format`, `out` has `format.values()` places. BF16 rows are copied.
///
/// # Errors
/// [`StoreError::Call`] if a length does not fit; [`StoreError::Undecodable`] if the meaning of the bytes or their scale is not known.
pub fn decode_bf16(format: RowFormat, zero: ScaleZero, row: &[u8], out: &mut [u16]) -> Result<(), StoreError> {
    let call = |what, got: usize, expected: u32| {
        if got as u64 == u64::from(expected) {
            return Ok(());
        }
        Err(StoreError::Call { what, got: got as u64, expected: expected.into() })
    };
    call("bytes of the row to decode", row.len(), format.row_bytes())?;
    call("places for decoded values", out.len(), format.values())?;
    let (values, scales) = row.split_at(format.value_bytes as usize);
    match (format.value, format.scale) {
        (ValueType::Bf16, RowScale::None) => {
            for (out, pair) in out.iter_mut().zip(values.as_chunks::<2>().0) {
                *out = u16::from_le_bytes(*pair);
            }
        }
        (ValueType::F8E4m3, RowScale::GlobalBf16(bits)) => {
            let scale = f32_from_bf16(bits);
            for (out, &byte) in out.iter_mut().zip(values) {
                *out = bf16_from_f32(E4M3FN[byte as usize] * scale);
            }
        }
        (ValueType::F8E4m3, RowScale::Ue8m0Per32) => {
            for ((out, values), &scale) in out.chunks_mut(32).zip(values.chunks(32)).zip(scales) {
                let scale = f32_from_ue8m0(scale, zero);
                for (out, &byte) in out.iter_mut().zip(values) {
                    *out = bf16_from_f32(E4M3FN[byte as usize] * scale);
                }
            }
        }
        _ => {
            return Err(StoreError::Undecodable { format });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (value, want) in [
            (1.0f32, 0x3F80u16),
            (f32::from_bits(0x3F80_8000), 0x3F80),
            (f32::from_bits(0x3F81_8000), 0x3F82),
            (f32::from_bits(0x3F80_8001), 0x3F81),
            (f32::MAX, 0x7F80),
            (f32::NEG_INFINITY, 0xFF80),
            (-0.0, 0x8000),
            (f32::from_bits(1), 0),
        ] {
            assert_eq!(bf16_from_f32(value), want, "{value}");
        }
        assert!(f32_from_bf16(bf16_from_f32(f32::NAN)).is_nan());
    }

    #[test]
    fn scale_bytes() {
        assert_eq!(f32_from_ue8m0(127, ScaleZero::Zero), 1.0);
        assert_eq!(f32_from_ue8m0(1, ScaleZero::Zero), f32::MIN_POSITIVE);
        assert_eq!(f32_from_ue8m0(0, ScaleZero::Zero), 0.0);
        assert_eq!(f32_from_ue8m0(0, ScaleZero::TwoToMinus127), f32::MIN_POSITIVE / 2.0);
        assert!(f32_from_ue8m0(255, ScaleZero::Zero).is_nan());
    }

    #[test]
    fn one_scale_for_the_table() {
        let format = RowFormat::qwen_fp8(4, bf16_from_f32(0.000_199_317_93));
        let mut out = [0; 4];
        decode_bf16(format, ScaleZero::Zero, &[0x38, 0xB8, 0, 0x7E], &mut out).unwrap();
        assert_eq!(out[0], bf16_from_f32(0.000_199_317_93));
        assert_eq!(out[1], out[0] | 0x8000);
        assert_eq!(out[2], 0);
        assert_eq!(out[3], bf16_from_f32(448.0 * f32_from_bf16(out[0])));
        assert!(decode_bf16(format, ScaleZero::Zero, &[0; 3], &mut out).is_err());
        assert!(decode_bf16(format, ScaleZero::Zero, &[0; 4], &mut out[1..]).is_err());
        let unknown = RowFormat::opaque(4);
        assert!(matches!(
            decode_bf16(unknown, ScaleZero::Zero, &[0; 4], &mut out),
            Err(StoreError::Undecodable { .. })
        ));
    }

    #[test]
    fn bf16_rows_are_copied() {
        let mut out = [0; 2];
        decode_bf16(RowFormat::qwen_bf16(2), ScaleZero::Zero, &[1, 2, 3, 4], &mut out).unwrap();
        assert_eq!(out, [0x0201, 0x0403]);
    }
}
