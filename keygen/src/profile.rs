//! Profiles: which id an engine puts at masked (image) positions, and what is hashed there.
//!
//! Rows must be those of the reference implementation, which hashes the placeholder id itself (Qwen3.8 PLE: 248056 for images, 248057 for
//! videos) or nothing at all (DeepSeek-V4.1 Engram: the position is DEAD, all of an image's span). Engines differ in what they hand over:
//!
//! | profile | at masked positions the engine puts | hashed for Qwen | for V4.1 |
//! |---|---|---|---|
//! | `Reference` (transformers, vLLM) | the placeholder id, `live` or not | the id as it is | DEAD |
//! | `Sglang` | an id from 1,000,000 on (a hash of the image, shifted), `live` or not; or the placeholder | `image_id` for shifted ids | DEAD |
//! | `LlamaCpp` | no token: whatever is there with `live = false` | `image_id`, or the end token if the spec has none | DEAD |
//!
//! Sources: transformers' and vLLM's PLE hash the ids they are given; SGLang's `MM_PAD_SHIFT_VALUE` is 1,000,000; llama.cpp reads
//! `ple.image_token_id` and falls back to the end token. A shifted id does not tell an image from a video: `Sglang` takes it for an image.

use crate::{Dialect, Id, Keygen, Token, TokenOutOfRange};

/// SGLang's placeholders begin here.
const SGLANG_SHIFT: Token = 1_000_000;

/// Which id an engine puts at masked (image) positions. See the module text of `profile.rs` in the sources, or `docs/ENGINES.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Profile {
    /// The model's placeholder id (transformers, vLLM).
    #[default]
    Reference = 0,
    /// Ids from 1,000,000 on stand for images.
    Sglang = 1,
    /// Masked positions carry no token.
    LlamaCpp = 2,
}

impl Keygen {
    /// Checks a token as an engine with this profile gives it, and resolves it to the id that is hashed.
    ///
    /// `live = false` marks a masked position, whose id is not validated.
    ///
    /// # Errors
    /// If a live token is outside the vocabulary, and no placeholder of the profile.
    #[inline]
    pub fn id_for(&self, profile: Profile, token: Token, live: bool) -> Result<Id, TokenOutOfRange> {
        let placeholder = match profile {
            Profile::Reference => false,
            Profile::Sglang => token >= SGLANG_SHIFT,
            Profile::LlamaCpp => !live,
        };
        if placeholder { Ok(self.placeholder()) } else { self.id(token, live) }
    }

    /// What is hashed where an image is.
    fn placeholder(&self) -> Id {
        match self.spec().dialect {
            Dialect::Engram => Id::DEAD,
            Dialect::QwenPle => Id(self.spec().image_id.unwrap_or_else(|| self.filler())),
        }
    }
}
