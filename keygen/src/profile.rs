//! Profiles: which id an engine puts at masked (image) positions, and what is hashed there.
//!
//! Rows must be those of the reference implementation, which hashes the placeholder id itself (Qwen3.8 PLE: 248056 for images, 248057 for
//! videos) or nothing at all (DeepSeek-V4.1 Engram: 129264, and with it the whole span of an image, is DEAD). Engines differ in what they
//! hand over:
//!
//! | profile | at masked positions the engine puts | hashed for Qwen | for V4.1 |
//! |---|---|---|---|
//! | `Reference` (transformers, vLLM) | the placeholder id, `live` or not | the id as it is | DEAD |
//! | `Sglang` | 1,000,000 + a hash of the image, `live` or not; that, clamped to the last id; or the placeholder | `image_id` for the first two | DEAD |
//! | `LlamaCpp` | no token: whatever is there with `live = false` | `image_id`, or the end token if the spec has none | DEAD |
//!
//! # Sources
//!
//! - transformers and vLLM: their PLE hashes the ids it is given, and these hold the placeholder; vLLM's sentinel mask of V4.1 is
//!   `id == 129264`.
//! - SGLang: `pad_value = MM_PAD_SHIFT_VALUE + hash % 2^30`, with a shift of 1,000,000 that no vocabulary may exceed (it checks so at
//!   start). V4.1: ids from the shift on become 129264 before they are compressed, but in a text-only model. Qwen: the ids are clamped in
//!   place to the vocabulary's last id (248319) before PLE reads them, so SGLang itself hashes that one; here it is taken back to the
//!   placeholder, because the tables were trained with it.
//! - llama.cpp: image positions come as embeddings without tokens. Its graph hashes `ple.image_token_id` there, for videos too, or the end
//!   token if the GGUF lacks that key.
//!
//! # What cannot be known
//!
//! A shifted id is a hash: it does not tell a video from an image, so it is taken for an image. A video gets its own rows if the engine
//! hands over `video_id`. The clamped id is an ordinary one where it is live, and is hashed as such.

use crate::{Dialect, Id, Keygen, Token, TokenOutOfRange};

/// SGLang's placeholders begin here; its vocabularies end below.
const SGLANG_SHIFT: Token = 1_000_000;

/// Which id an engine puts at masked (image) positions.
///
/// Rows are those of the reference implementation whatever the engine puts there; [`Keygen::id_for`] says what is hashed.
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
    /// `live = false` marks a masked position, whose id is not validated: it is DEAD (Engram), or hashed as the profile says (Qwen). A
    /// placeholder of the profile is recognised with `live = true`, too, if the spec has an `image_id` in the vocabulary.
    ///
    /// ```
    /// use engram_keygen::{Keygen, Profile, Spec};
    /// let keygen = Keygen::new(&Spec::qwen_ple(), None)?;
    /// let image = keygen.id_for(Profile::Reference, 248_056, true)?;
    /// assert_eq!(keygen.id_for(Profile::Sglang, 1_234_567, true)?, image);
    /// assert_eq!(keygen.id_for(Profile::LlamaCpp, -1, false)?, image);
    /// assert!(keygen.id_for(Profile::Reference, 1_234_567, true).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a live token is outside the vocabulary (all that are negative are), and no placeholder of the profile.
    #[inline]
    pub fn id_for(&self, profile: Profile, token: Token, live: bool) -> Result<Id, TokenOutOfRange> {
        let is_placeholder = match profile {
            Profile::Reference => false,
            // A negative masked id becomes huge: no token of the engine's either.
            Profile::Sglang => {
                token >= SGLANG_SHIFT.max(self.vocab() as Token) || (!live && token as u32 >= self.vocab() - 1)
            }
            Profile::LlamaCpp => !live,
        };
        if is_placeholder { self.placeholder(token, live) } else { self.id(token, live) }
    }

    /// What is hashed where an image is; `token` is what the engine put there.
    fn placeholder(&self, token: Token, live: bool) -> Result<Id, TokenOutOfRange> {
        match self.spec().image_id.filter(|&id| self.check(id).is_ok()) {
            Some(image) => self.id(image, live),
            // The model knows no images: a live id is refused.
            None if live || self.spec().dialect == Dialect::Engram => self.id(token, live),
            None => self.id(self.filler(), live),
        }
    }
}
