//! What the bytes of a row mean, as far as it is known.
//!
//! Rows are delivered unchanged; a [`RowFormat`] only describes them, for `inspect`, for the decode helper and for the rule by which
//! synthetic rows prove themselves. Invariant: `row_bytes() = value_bytes + scale bytes`, and the values come first.

use serde::{Deserialize, Serialize};

/// Type of the values of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ValueType {
    /// 2 bytes, little-endian: the upper half of an IEEE binary32.
    Bf16,
    /// 1 byte: 4 exponent and 3 mantissa bits, no infinities, NaN at 0x7f and 0xff (`e4m3fn`).
    F8E4m3,
    /// Bytes whose meaning this crate does not know.
    Opaque,
}

/// How the values of a row are scaled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum RowScale {
    /// Values stand for themselves.
    None,
    /// One bfloat16 factor for the whole table, given as its bits.
    GlobalBf16(u16),
    /// One power-of-two exponent byte (`ue8m0`) for every 32 values, stored in the row behind the values.
    Ue8m0Per32,
    /// The source does not say (raw shards carry no scale).
    Unknown,
}

/// Value type, value bytes and scale of every row of a set of tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowFormat {
    /// Type of the values.
    pub value: ValueType,
    /// Bytes that the values of a row take (160 values in FP8: 160; in BF16: 320).
    pub value_bytes: u32,
    /// Scale of the values.
    pub scale: RowScale,
}

impl RowFormat {
    /// Qwen PLE rows in FP8: `values` bytes, one factor for the whole table (`scale` = bits of a bfloat16).
    pub const fn qwen_fp8(values: u32, scale: u16) -> Self {
        Self { value: ValueType::F8E4m3, value_bytes: values, scale: RowScale::GlobalBf16(scale) }
    }

    /// Qwen PLE rows in BF16: `values` values of two bytes.
    pub const fn qwen_bf16(values: u32) -> Self {
        Self { value: ValueType::Bf16, value_bytes: values * 2, scale: RowScale::None }
    }

    /// DeepSeek-V4.1 Engram rows: `values` FP8 bytes and one exponent byte for every 32 of them (256 + 8 in the released model).
    pub const fn v41(values: u32) -> Self {
        Self { value: ValueType::F8E4m3, value_bytes: values, scale: RowScale::Ue8m0Per32 }
    }

    /// Rows of `bytes` bytes whose meaning is not known.
    pub const fn opaque(bytes: u32) -> Self {
        Self { value: ValueType::Opaque, value_bytes: bytes, scale: RowScale::Unknown }
    }

    /// Number of values in a row; for opaque rows the number of bytes.
    pub const fn values(&self) -> u32 {
        match self.value {
            ValueType::Bf16 => self.value_bytes / 2,
            ValueType::F8E4m3 | ValueType::Opaque => self.value_bytes,
        }
    }

    /// Bytes of scale inside a row, behind its values.
    pub const fn scale_bytes(&self) -> u32 {
        match self.scale {
            RowScale::Ue8m0Per32 => self.values().div_ceil(32),
            RowScale::None | RowScale::GlobalBf16(_) | RowScale::Unknown => 0,
        }
    }

    /// Bytes of a row, values and scale together.
    pub const fn row_bytes(&self) -> u32 {
        self.value_bytes + self.scale_bytes()
    }
}

impl std::fmt::Display for RowFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            ValueType::Bf16 => write!(f, "{} x bf16", self.values())?,
            ValueType::F8E4m3 => write!(f, "{} x f8_e4m3", self.values())?,
            ValueType::Opaque => write!(f, "{} opaque bytes", self.value_bytes)?,
        }
        match self.scale {
            RowScale::None => Ok(()),
            RowScale::GlobalBf16(bits) => {
                write!(f, ", one scale {}", f32::from_bits(u32::from(bits) << 16))
            }
            RowScale::Ue8m0Per32 => write!(f, " + {} x ue8m0 (per 32)", self.scale_bytes()),
            RowScale::Unknown => write!(f, ", scale unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_widths() {
        assert_eq!(RowFormat::qwen_fp8(160, 0x3951).row_bytes(), 160);
        assert_eq!(RowFormat::qwen_bf16(160).row_bytes(), 320);
        assert_eq!(RowFormat::v41(256).row_bytes(), 264);
        assert_eq!(RowFormat::v41(256).to_string(), "256 x f8_e4m3 + 8 x ue8m0 (per 32)");
        assert_eq!(RowFormat::qwen_fp8(160, 0x3951).to_string(), "160 x f8_e4m3, one scale 0.00019931793");
    }
}
