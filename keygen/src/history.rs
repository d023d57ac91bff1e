//! What a request remembers: its last ids, and how many positions exist.
//!
//! Rows depend on the last n - 1 ids. A longer tail is kept so that positions can be taken back (rejected drafts,
//! edits) without asking the engine for the ids again.
//!
//! Invariants:
//! - Ids are kept resolved (compressed, DEAD marked), so a window is read without the token map.
//! - At least `min(position, n - 1)` ids are kept, at most `tail_max`; hence the window of the next token is always
//!   known.
//! - After `new`, nothing but `clone` and `export` allocates.
//! - A call that fails changes nothing.

use crate::keygen::{DEAD, Id};
use crate::rng::splitmix64;
use crate::{HistoryUnavailable, ImportError, Keygen, Profile, SeedError, Token};

/// First bytes of an exported history: "engram history".
const MAGIC: [u8; 4] = *b"EGHI";
/// Format of an exported history.
const FORMAT: u16 = 1;
/// Bytes before the ids: magic 4, format 2, n - 1 2, fingerprint 8, position 8, count 4.
const HEADER_BYTES: usize = 28;
/// Bytes after the ids: the checksum.
const TRAILER_BYTES: usize = 8;

/// The last ids of one request and its number of positions. A fork is a `clone`.
///
/// Memory: `tail_max` rounded up to a power of two, times 4 B.
#[derive(Clone, Debug)]
pub struct History {
    /// Ring of resolved ids; the id of position p is at `p & (len - 1)`. The length is a power of two.
    ring: Box<[i32]>,
    /// Positions that exist.
    position: u64,
    /// The newest `kept` positions are in the ring.
    kept: u32,
    tail_max: u32,
    /// n - 1.
    reach: u8,
    /// Of the keygen whose ids these are.
    fingerprint: u64,
}

/// Two histories are equal if every later row is: same keygen, position and kept ids.
impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        (self.fingerprint, self.position, self.kept) == (other.fingerprint, other.position, other.kept)
            && self.kept_ids().eq(other.kept_ids())
    }
}

impl Eq for History {}

impl History {
    /// The usual tail, in ids.
    pub const TAIL_DEFAULT: usize = 256;
    /// The longest tail, in ids: 4 MiB a request.
    pub const TAIL_MAX: usize = 1 << 20;

    /// An empty history (position 0) that keeps the last `tail_max` ids.
    ///
    /// `tail_max` is raised to [`Keygen::history_len`] and cut to [`History::TAIL_MAX`].
    pub fn new(keygen: &Keygen, tail_max: usize) -> Self {
        let tail_max = tail_max.clamp(keygen.history_len(), Self::TAIL_MAX);
        Self {
            ring: vec![0; tail_max.next_power_of_two()].into(),
            position: 0,
            kept: 0,
            tail_max: tail_max as u32,
            reach: keygen.history_len() as u8,
            fingerprint: keygen.fingerprint(),
        }
    }

    /// Positions that exist: the next token is at this one.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Ids that are kept, at most `tail_max`.
    pub fn kept(&self) -> usize {
        self.kept as usize
    }

    /// Ids that are kept at most.
    pub fn tail_max(&self) -> usize {
        self.tail_max as usize
    }

    /// Positions that [`History::rollback`] can take back: those whose window is still known without them.
    pub fn rollback_max(&self) -> u64 {
        let kept = u64::from(self.kept);
        // Everything since position 0 is kept: before it lies nothing that a window could need.
        if kept == self.position { kept } else { kept - u64::from(self.reach) }
    }

    /// Forgets everything: position 0, nothing kept.
    pub fn clear(&mut self) {
        (self.position, self.kept) = (0, 0);
    }

    /// Becomes the history of a request at `start_pos` (a prefix-cache hit, a hand-over) that held `ids` before it.
    ///
    /// `ids` are raw, newest last, at least `min(start_pos, n - 1)` of them. `live` marks the masked ones with `false`,
    /// one entry per id; `None` = all live. Ids older than the window do not matter; as many of them as the tail holds
    /// are kept for [`History::rollback`], back to the first that is not legal. Ids that would lie before position 0
    /// are ignored.
    ///
    /// # Errors
    /// If there are too few ids, the mask has another length, or a live id of the window is not legal. Nothing changes
    /// then.
    ///
    /// # Panics
    /// If the history was made for another keygen.
    pub fn seed(
        &mut self,
        keygen: &Keygen,
        ids: &[Token],
        live: Option<&[bool]>,
        start_pos: u64,
    ) -> Result<(), SeedError> {
        self.seed_for(keygen, Profile::Reference, ids, live, start_pos)
    }

    /// The same, with the placeholders of an engine.
    ///
    /// # Errors
    /// As [`History::seed`].
    ///
    /// # Panics
    /// As [`History::seed`].
    pub fn seed_for(
        &mut self,
        keygen: &Keygen,
        profile: Profile,
        ids: &[Token],
        live: Option<&[bool]>,
        start_pos: u64,
    ) -> Result<(), SeedError> {
        self.assert_keygen(keygen);
        if let Some(live) = live
            && live.len() != ids.len()
        {
            return Err(SeedError::Mask { live: live.len(), ids: ids.len() });
        }
        let need = u64::from(self.reach).min(start_pos) as usize;
        if ids.len() < need {
            return Err(SeedError::TooShort { start_pos, need, got: ids.len() });
        }
        let is_live = |i: usize| live.is_none_or(|live| live[i]);
        let legal = |i: usize| keygen.id_for(profile, ids[i], is_live(i));
        for i in ids.len() - need..ids.len() {
            legal(i)?;
        }
        let most = ids.len().min(self.tail_max as usize).min(usize::try_from(start_pos).unwrap_or(usize::MAX));
        let keep = (need..most).find(|&older| legal(ids.len() - 1 - older).is_err()).unwrap_or(most);
        self.position = start_pos - keep as u64;
        self.kept = 0;
        for (i, &id) in ids.iter().enumerate().skip(ids.len() - keep) {
            self.append(keygen.id_for(profile, id, is_live(i))?);
        }
        Ok(())
    }

    /// Takes back the newest `positions` positions.
    ///
    /// Rows after it are those of a history that never had them.
    ///
    /// # Errors
    /// If `positions` is above [`History::rollback_max`]. Nothing changes then.
    pub fn rollback(&mut self, positions: u64) -> Result<(), HistoryUnavailable> {
        let rollback_max = self.rollback_max();
        if positions > rollback_max {
            return Err(HistoryUnavailable { positions, position: self.position, rollback_max });
        }
        self.position -= positions;
        self.kept -= positions as u32; // at most rollback_max <= kept
        Ok(())
    }

    /// Whether position `pos` holds an id that hashes as `token` does; `None` if the position is not kept.
    ///
    /// With it an engine that feeds the same tokens again is recognised, and nothing is read twice.
    ///
    /// # Panics
    /// As [`Keygen::push`], and if the history was made for another keygen.
    pub fn holds(&self, keygen: &Keygen, pos: u64, token: Token, live: bool) -> Option<bool> {
        self.assert_keygen(keygen);
        let age = self.position.checked_sub(pos).filter(|age| (1..=u64::from(self.kept)).contains(age))?;
        Some(self.back(age as usize) == Some(keygen.resolve(token, live)))
    }

    /// The history as bytes, for [`History::import`] into a process with the same spec and token map.
    ///
    /// Layout, little-endian: magic `EGHI`, u16 format, u16 n - 1, u64 fingerprint of the keygen, u64 position, u32
    /// count, then count resolved ids as i32, oldest first, then a u64 checksum of all that.
    pub fn export(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + 4 * self.kept() + TRAILER_BYTES);
        out.extend(MAGIC);
        out.extend(FORMAT.to_le_bytes());
        out.extend(u16::from(self.reach).to_le_bytes());
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(self.position.to_le_bytes());
        out.extend(self.kept.to_le_bytes());
        self.kept_ids().for_each(|id| out.extend(id.to_le_bytes()));
        out.extend(checksum(&out).to_le_bytes());
        out
    }

    /// Becomes the exported history; as much of it is kept as this tail holds.
    ///
    /// # Errors
    /// If the bytes are damaged, of a later format, or of another spec or token map. Nothing changes then.
    pub fn import(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        let malformed = |cause| ImportError::Malformed { len: bytes.len(), cause };
        let Some((content, trailer)) = bytes.split_last_chunk::<TRAILER_BYTES>() else {
            return Err(malformed("too short"));
        };
        let Some((header, body)) = content.split_first_chunk::<HEADER_BYTES>() else {
            return Err(malformed("too short"));
        };
        let [m0, m1, m2, m3, f0, f1, r0, r1, rest @ ..] = *header;
        let (numbers, _) = rest.as_chunks::<4>();
        let word = |i: usize| u32::from_le_bytes(numbers[i]);
        let long = |i: usize| u64::from(word(i)) | u64::from(word(i + 1)) << 32;
        let (fingerprint, position, count) = (long(0), long(2), word(4));
        if [m0, m1, m2, m3] != MAGIC {
            return Err(malformed("other magic"));
        }
        let found = u16::from_le_bytes([f0, f1]);
        if found != FORMAT {
            return Err(ImportError::Version { found, known: FORMAT });
        }
        if checksum(content) != u64::from_le_bytes(*trailer) {
            return Err(malformed("wrong checksum"));
        }
        if fingerprint != self.fingerprint || u16::from_le_bytes([r0, r1]) != u16::from(self.reach) {
            return Err(ImportError::OtherKeygen { found: fingerprint, want: self.fingerprint });
        }
        let (ids, remainder) = body.as_chunks::<4>();
        if !remainder.is_empty() || ids.len() as u64 != u64::from(count) {
            return Err(malformed("another number of ids than declared"));
        }
        if u64::from(count) > position || u64::from(count) < position.min(u64::from(self.reach)) {
            return Err(malformed("position and number of ids contradict each other"));
        }
        let keep = ids.len().min(self.tail_max as usize);
        self.position = position - keep as u64;
        self.kept = 0;
        for id in &ids[ids.len() - keep..] {
            self.append(Id(i32::from_le_bytes(*id)));
        }
        Ok(())
    }

    /// Becomes the history `other`, as much of it as this tail holds. Allocates nothing.
    ///
    /// # Panics
    /// If the two were made for different keygens.
    pub fn copy_from(&mut self, other: &Self) {
        assert!(self.fingerprint == other.fingerprint, "the histories are of different keygens");
        let keep = other.kept().min(self.tail_max());
        self.position = other.position - keep as u64;
        self.kept = 0;
        for age in (1..=keep).rev() {
            self.append(Id(other.back(age).unwrap_or(DEAD)));
        }
    }

    /// The kept id of position `pos`.
    pub fn id_at(&self, pos: u64) -> Option<Id> {
        let age = self.position.checked_sub(pos).filter(|&age| age > 0)?;
        self.back(usize::try_from(age).ok()?).map(Id)
    }

    /// The oldest position whose window is known: older ones can neither be rewritten nor read again.
    pub fn oldest(&self) -> u64 {
        self.position - self.rollback_max()
    }

    /// Age of a position whose window is known, 1 = the newest.
    #[inline]
    pub(crate) fn window_age(&self, pos: u64) -> Option<usize> {
        (self.oldest()..self.position).contains(&pos).then(|| (self.position - pos) as usize)
    }

    /// Appends an id that the history's keygen has resolved.
    #[inline]
    pub fn append(&mut self, id: Id) {
        let mask = self.ring.len() - 1;
        self.ring[self.position as usize & mask] = id.0;
        self.position += 1;
        self.kept = (self.kept + 1).min(self.tail_max);
    }

    /// The resolved id `age` positions back, 1 = the newest; `None` if it is not kept.
    #[inline]
    pub(crate) fn back(&self, age: usize) -> Option<i32> {
        let mask = self.ring.len() - 1;
        (age <= self.kept as usize).then(|| self.ring[(self.position as usize).wrapping_sub(age) & mask])
    }

    /// Refuses ids of another keygen: they would be hashed as if they were this one's.
    #[inline]
    pub(crate) fn assert_keygen(&self, keygen: &Keygen) {
        assert!(self.fingerprint == keygen.fingerprint(), "the history was made for another keygen");
    }

    /// The kept ids, oldest first.
    fn kept_ids(&self) -> impl Iterator<Item = i32> {
        (1..=self.kept()).rev().map(|age| self.back(age).unwrap_or(DEAD))
    }
}

/// Finds damage; no protection against forgery.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |digest, &byte| splitmix64(digest ^ u64::from(byte)))
}
