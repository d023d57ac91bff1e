//! Requests: slots, and the front of a request, where calls are checked before anything happens.
//!
//! The front holds what a call must know to answer at once: the last committed ids, the drafts. It belongs to one caller at a time (the
//! push bit of the tenure), and what it decides travels to the request's keygen actor ([`crate::planner`]) as messages, in order: applied by
//! the caller itself if nobody runs the actor, left in the mailbox if somebody does. An error leaves front and actor as they were.
//!
//! Life of a slot: VACANT (on the free list) -> SERVING (admitted) <-> PREEMPTED; either -> DRAINING (ended; its last copies, holders and
//! pusher finish) -> VACANT. Reads of an ended request may still be in flight when the slot goes to the next one: their cells are
//! orphans, they belong to no request and give their credit back when they come home.

use crate::TokenError;
use crate::core::Core;
use crate::limits::{ROW_CELLS, Resolved};
use crate::message::{Change, Message, Messages, POSITION_MAX};
use crate::planner::KeygenActor;
use crate::protocol::admission::Admission;
use crate::protocol::ask::Ask;
use crate::protocol::credit::Credit;
use crate::protocol::mailbox::Mailbox;
use crate::protocol::run_gate::RunGate;
use crate::protocol::taker::Taker;
use crate::protocol::tenure::{PushRefused, Tenure};
use crate::protocol::wish_list::WishList;
use crate::scheduler::{Begin, RequestClass, RequestId};
use crate::step::Wakes;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};
use engram_keygen::{History, Id, ImportError, Keygen, Profile, SeedError, Token, TokenOutOfRange};

/// First bytes of an exported request: "engram request".
const MAGIC: [u8; 4] = *b"EGRQ";
/// Format of an exported request: magic, u8 format, u8 profile, u8 class, u8 zero, then the history.
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 8;

/// What the calls of a request must know. See the module text.
#[derive(Debug)]
pub(crate) struct Front {
    /// Committed ids.
    history: History,
    drafts: Vec<Id>,
    profile: Profile,
    class: RequestClass,
    preempted: bool,
}

/// What `begin` and `resume` hand to the actor.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) history: History,
    pub(crate) class: RequestClass,
}

/// A request's place in the scheduler.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) tenure: Tenure,
    pub(crate) actor: RunGate<KeygenActor>,
    pub(crate) credit: Credit,
    pub(crate) mailbox: Mailbox,
    pub(crate) wishes: WishList,
    front: Mutex<Front>,
    /// Positions that have been planned, as far as the actor has told.
    pub(crate) planned: AtomicU64,
    pub(crate) admission: Admission<Admitted>,
    /// The engine waits for a range to be bound.
    pub(crate) bind: Ask,
    /// Messages that may cut the range in force: sent by the front, and applied by the actor.
    cuts_sent: AtomicU64,
    pub(crate) cuts_applied: AtomicU64,
    /// The range in force, `start << 24 | tokens`, for the waiter; written before its layer gates can open.
    range: AtomicU64,
    pub(crate) taker: Taker,
    /// The request is preempted: its waiter has nothing to wait for.
    pub(crate) preempted: AtomicBool,
    /// Among which requests it counts: NONE, LIVE or PREEMPTED. Who moves it adjusts the counts.
    counted: AtomicU32,
    /// 1 while it counts among the live interactive ones.
    interactive: AtomicU32,
}

const NONE: u32 = 0;
const LIVE: u32 = 1;
const PREEMPTED: u32 = 2;

const RANGE_TOKENS_BITS: u32 = 24;

impl Slot {
    pub(crate) fn new(index: u32, keygen: &Keygen, limits: &Resolved, tables: usize) -> Self {
        // The slot past the last request is that of row reads: it has cells, but no tokens.
        let is_request = index < limits.request_slots;
        let cells = if is_request { limits.request_cells() } else { ROW_CELLS };
        let (ids, messages) =
            if is_request { (limits.recorded_ids(), limits.mailbox_messages as usize) } else { (0, 1) };
        let steps = 2 * usize::from(limits.steps_in_flight);
        let front = Front {
            history: History::new(keygen, if is_request { limits.history_tail as usize } else { 0 }),
            drafts: Vec::with_capacity(if is_request { limits.draft_tokens as usize } else { 0 }),
            profile: Profile::default(),
            class: RequestClass::default(),
            preempted: false,
        };
        Self {
            tenure: Tenure::new(),
            actor: RunGate::new(KeygenActor::new(History::new(keygen, ids), cells as usize, tables, steps)),
            credit: Credit::new(cells),
            mailbox: Mailbox::new(messages),
            wishes: WishList::new(),
            front: Mutex::new(front),
            planned: AtomicU64::new(0),
            admission: Admission::new(),
            bind: Ask::new(),
            cuts_sent: AtomicU64::new(0),
            cuts_applied: AtomicU64::new(0),
            range: AtomicU64::new(0),
            taker: Taker::new(),
            preempted: AtomicBool::new(false),
            counted: AtomicU32::new(NONE),
            interactive: AtomicU32::new(0),
        }
    }

    /// Asks the actor to bind the next range; the caller runs the actor afterwards.
    pub(crate) fn ask_to_bind(&self) {
        self.bind.raise();
    }

    /// Whether the actor has applied every cut that was sent before the call: what awaits claim is not about to be cut.
    pub(crate) fn is_settled(&self) -> bool {
        self.cuts_applied.load(Ordering::Acquire) == self.cuts_sent.load(Ordering::Acquire)
    }

    /// First position and tokens of the bound range. For the waiter, after a layer gate is open.
    pub(crate) fn range(&self) -> (u64, u32) {
        let word = self.range.load(Ordering::Relaxed);
        (word >> RANGE_TOKENS_BITS, (word & ((1 << RANGE_TOKENS_BITS) - 1)) as u32)
    }

    /// Sets the range in force. For the actor.
    pub(crate) fn set_range(&self, start: u64, tokens: u32) {
        self.range.store(start << RANGE_TOKENS_BITS | u64::from(tokens), Ordering::Relaxed);
    }
}

/// Tokens on their way into a request.
#[derive(Clone, Copy)]
pub(crate) struct Feed<'a> {
    /// Where they belong; `None`: at the end.
    pub(crate) pos: Option<u64>,
    pub(crate) toks: &'a [Token],
    pub(crate) live: Option<&'a [bool]>,
    pub(crate) prefill: bool,
}

impl Feed<'_> {
    fn is_live(&self, i: usize) -> bool {
        self.live.is_none_or(|live| live[i])
    }
}

impl Core {
    /// The slot of an id; any id of another scheduler or another time is simply unknown.
    pub(crate) fn slot_of(&self, req: RequestId) -> Result<&Slot, TokenError> {
        if req.slot() >= self.limits.request_slots {
            return Err(TokenError::UnknownRequest(req));
        }
        Ok(&self.slots[req.slot() as usize])
    }

    // ---- admission -------------------------------------------------------------------------------------------------------------

    fn seeded(&self, begin: &Begin<'_>) -> Result<History, TokenError> {
        if begin.start_pos >= POSITION_MAX {
            return Err(TokenError::LimitReached("position"));
        }
        let mut history = History::new(&self.keygen, self.limits.history_tail as usize);
        history.seed_for(&self.keygen, begin.profile, begin.history, begin.live, begin.start_pos).map_err(
            |e| match e {
                SeedError::TooShort { need, got, .. } => {
                    TokenError::HistoryTooShort { need: need as u32, got: got as u32 }
                }
                SeedError::Token(bad) => {
                    TokenError::BadToken { tok: bad.token, pos: begin.start_pos, vocab: bad.vocab }
                }
                _ => TokenError::MaskLength { live: begin.live.map_or(0, <[bool]>::len), toks: begin.history.len() },
            },
        )?;
        Ok(history)
    }

    pub(crate) fn begin(&self, begin: Begin<'_>) -> Result<RequestId, TokenError> {
        self.check_open()?;
        self.admit(self.seeded(&begin)?, begin.profile, begin.class)
    }

    /// One more live request, if there may be.
    fn count_live(&self) -> Result<(), TokenError> {
        let requests = self.limits.requests;
        let one_more = |live| (live < requests).then_some(live + 1);
        match self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(()),
            Err(_) => Err(TokenError::LimitReached("requests_max")),
        }
    }

    fn admit(&self, history: History, profile: Profile, class: RequestClass) -> Result<RequestId, TokenError> {
        self.count_live()?;
        let Some(index) = self.free_slots.pop() else {
            // More ended requests than slots to spare are kept by their guards.
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Err(TokenError::LimitReached("requests_max"));
        };
        let slot = &self.slots[index as usize];
        slot.planned.store(history.position(), Ordering::Relaxed);
        slot.preempted.store(false, Ordering::Relaxed);
        slot.counted.store(LIVE, Ordering::Relaxed);
        self.count_interactive(slot, class);
        {
            let mut front = lock(&slot.front);
            front.history.copy_from(&history);
            front.drafts.clear();
            (front.profile, front.class, front.preempted) = (profile, class, false);
        }
        let admitted = Admitted { history, class };
        let generation = slot.admission.begin(&slot.tenure, admitted);
        self.counters.requests_begun.add(1);
        self.run(index);
        Ok(RequestId::new(index, generation))
    }

    /// Moves the request among those that it counts with. False: it has ended meanwhile.
    fn recount(&self, slot: &Slot, from: u32, to: u32) -> bool {
        slot.counted.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn uncount_interactive(&self, slot: &Slot) {
        self.interactive_live.fetch_sub(slot.interactive.swap(0, Ordering::AcqRel), Ordering::Relaxed);
    }

    fn count_interactive(&self, slot: &Slot, class: RequestClass) {
        let interactive = u32::from(class == RequestClass::Interactive);
        slot.interactive.store(interactive, Ordering::Relaxed);
        self.interactive_live.fetch_add(interactive, Ordering::Relaxed);
    }

    // ---- the front -------------------------------------------------------------------------------------------------------------

    /// Takes the front of a request for one call.
    fn with_front<T>(
        &self,
        req: RequestId,
        call: impl FnOnce(&Slot, &mut Front, &mut Wakes) -> Result<T, TokenError>,
    ) -> Result<T, TokenError> {
        self.check_open()?;
        let slot = self.slot_of(req)?;
        slot.tenure.start_push(req.generation()).map_err(|refused| match refused {
            PushRefused::Busy => TokenError::Busy,
            PushRefused::Ended => {
                self.counters.stale_ids.add(1);
                TokenError::UnknownRequest(req)
            }
        })?;
        let mut wakes = Wakes::default();
        let result = call(slot, &mut lock(&slot.front), &mut wakes); // never waited for: the push bit comes first
        slot.tenure.end_push();
        self.run(req.slot());
        self.wake(wakes);
        result
    }

    fn serving(front: &Front) -> Result<(), TokenError> {
        if front.preempted { Err(TokenError::BadState("the request is preempted; resume it first")) } else { Ok(()) }
    }

    /// A token that will stand at `pos`, as it is hashed.
    fn check_token(&self, profile: Profile, tok: Token, live: bool, pos: u64) -> Result<Id, TokenError> {
        let bad = |bad: TokenOutOfRange| TokenError::BadToken { tok, pos, vocab: bad.vocab };
        self.keygen.id_for(profile, tok, live).map_err(bad)
    }

    /// Whether `count` more tokens can be recorded behind `kept`.
    fn check_record(&self, slot: &Slot, kept: u64, count: u64) -> Result<(), TokenError> {
        let planned = slot.planned.load(Ordering::Relaxed).min(kept);
        let fits = kept - planned + count <= u64::from(self.limits.request_tokens);
        if fits { Ok(()) } else { Err(TokenError::LimitReached("request_tokens_max")) }
    }

    /// Whether the request can be cut, or written again, from `pos` on.
    fn check_kept(front: &Front, pos: u64) -> Result<(), TokenError> {
        let oldest = front.history.oldest();
        if pos < oldest { Err(TokenError::HistoryUnavailable { pos, oldest }) } else { Ok(()) }
    }

    /// Gives messages to the actor: applies them, if nobody runs it, or leaves them in its mailbox. `change` is made to the front before
    /// anybody can see the messages; if it is not made, nothing has happened. `cuts`: how many of them are cuts.
    fn deliver(
        &self,
        index: u32,
        messages: impl ExactSizeIterator<Item = Message>,
        cuts: u64,
        wakes: &mut Wakes,
        change: impl FnOnce(),
    ) -> Result<(), TokenError> {
        let slot = &self.slots[index as usize];
        let change = || {
            change();
            slot.cuts_sent.fetch_add(cuts, Ordering::Release);
        };
        if let Some(runner) = slot.actor.notify() {
            change();
            let mut messages = Some(messages);
            // Only what is in order; planning comes when the front has been let go of.
            self.run_claimed(index, runner, wakes, |core, slot, actor, wakes| match messages.take() {
                Some(messages) => {
                    core.drain_mailbox(slot, actor, index, wakes);
                    messages.for_each(|message| core.apply(index, actor, message, wakes));
                    true
                }
                None => false,
            });
            return Ok(());
        }
        if !slot.mailbox.has_room(messages.len()) {
            return Err(TokenError::Busy);
        }
        change();
        slot.mailbox.push(messages.map(Message::to_word));
        Ok(())
    }

    pub(crate) fn feed(&self, req: RequestId, feed: Feed<'_>) -> Result<(), TokenError> {
        if let Some(live) = feed.live
            && live.len() != feed.toks.len()
        {
            return Err(TokenError::MaskLength { live: live.len(), toks: feed.toks.len() });
        }
        self.with_front(req, |slot, front, wakes| {
            Self::serving(front)?;
            self.push(req.slot(), slot, front, feed, wakes)
        })
    }

    /// Checks tokens and appends them, or rewrites the tail.
    fn push(
        &self,
        index: u32,
        slot: &Slot,
        front: &mut Front,
        feed: Feed<'_>,
        wakes: &mut Wakes,
    ) -> Result<(), TokenError> {
        let (end, profile) = (front.history.position(), front.profile);
        let pos = feed.pos.unwrap_or(end);
        if pos > end {
            return Err(TokenError::Gap { end, pos });
        }
        if pos + feed.toks.len() as u64 >= POSITION_MAX {
            return Err(TokenError::LimitReached("position"));
        }
        for (i, &tok) in feed.toks.iter().enumerate() {
            self.check_token(profile, tok, feed.is_live(i), pos + i as u64)?;
        }
        let id = |i: usize| self.keygen.id_for(profile, feed.toks[i], feed.is_live(i)).expect("checked above");
        let change = Self::change(front, pos, feed.toks.len(), id)?;
        let count = feed.toks.len() - change.skip;
        let kept = change.cut.map_or(end, |cut| cut.min(end)) + u64::from(change.commit);
        self.check_record(slot, kept, count as u64)?;
        let skip = change.skip;
        let tokens = (0..count).map(|i| Message::Token { id: id(skip + i), prefill: feed.prefill });
        self.deliver(index, Messages::new(change, tokens), change.cuts(), wakes, || {
            Self::make(front, change);
            (0..count).for_each(|i| front.history.append(id(skip + i)));
        })?;
        self.counters.tokens.add(feed.toks.len() as u64);
        Ok(())
    }

    /// What has to be done so that `len` ids stand at `pos`: ids that stand there already are no news, drafts that turn out right are
    /// committed, and the first difference cuts.
    fn change(front: &Front, pos: u64, len: usize, id: impl Fn(usize) -> Id) -> Result<Change, TokenError> {
        let end = front.history.position();
        let mut change = Change::default();
        let again = (end - pos).min(len as u64);
        if again > 0 {
            Self::check_kept(front, pos)?;
            change.skip =
                (0..again as usize).take_while(|&i| front.history.id_at(pos + i as u64) == Some(id(i))).count();
            if (change.skip as u64) < again {
                change.cut = Some(pos + change.skip as u64);
                return Ok(change);
            }
        }
        let rest = len - change.skip;
        let right = (0..rest.min(front.drafts.len())).take_while(|&i| front.drafts[i] == id(change.skip + i)).count();
        change.commit = right as u32;
        change.skip += right;
        if rest > right && front.drafts.len() > right {
            change.cut = Some(end + right as u64);
        }
        Ok(change)
    }

    fn make(front: &mut Front, change: Change) {
        for id in front.drafts.drain(..change.commit as usize) {
            front.history.append(id);
        }
        if let Some(cut) = change.cut {
            front.drafts.clear();
            let back = front.history.position().saturating_sub(cut);
            front.history.rollback(back).expect("checked by whoever cuts");
        }
    }

    pub(crate) fn on_draft(&self, req: RequestId, pos: u64, toks: &[Token]) -> Result<(), TokenError> {
        self.with_front(req, |_, front, wakes| {
            Self::serving(front)?;
            let (end, profile) = (front.history.position(), front.profile);
            let drafts_end = end + front.drafts.len() as u64;
            if !(end..=drafts_end).contains(&pos) {
                return Err(TokenError::Gap { end: drafts_end, pos });
            }
            let before = (pos - end) as usize;
            if before + toks.len() > self.limits.draft_tokens as usize {
                return Err(TokenError::LimitReached("draft_tokens_max"));
            }
            for (i, &tok) in toks.iter().enumerate() {
                self.check_token(profile, tok, true, pos + i as u64)?;
            }
            let id = |i: usize| self.keygen.id_for(profile, toks[i], true).expect("checked above");
            let there = &front.drafts[before..];
            let same = (0..toks.len().min(there.len())).take_while(|&i| there[i] == id(i)).count();
            // A shorter chain that stands there already is no news.
            let cut = (same < toks.len() && same < there.len()).then_some(pos + same as u64);
            let change = Change { cut, ..Change::default() };
            let drafts = (same..toks.len()).map(|i| Message::Draft(id(i)));
            self.deliver(req.slot(), Messages::new(change, drafts), change.cuts(), wakes, || {
                if cut.is_some() {
                    front.drafts.truncate(before + same);
                }
                front.drafts.extend((same..toks.len()).map(id));
            })
        })
    }

    pub(crate) fn accept(&self, req: RequestId, n: u32, bonus: Option<Token>) -> Result<(), TokenError> {
        self.with_front(req, |slot, front, wakes| {
            Self::serving(front)?;
            if n as usize > front.drafts.len() {
                return Err(TokenError::BadState("accept: there are fewer drafts than that"));
            }
            let end = front.history.position() + u64::from(n);
            let bonus = bonus.map(|tok| self.check_token(front.profile, tok, true, end)).transpose()?;
            let left = front.drafts.len() > n as usize;
            self.check_record(slot, end, bonus.is_some().into())?;
            let change = Change { commit: n, cut: left.then_some(end), skip: 0 };
            let tokens = bonus.map(|id| Message::Token { id, prefill: false });
            self.deliver(req.slot(), Messages::new(change, tokens.into_iter()), change.cuts(), wakes, || {
                Self::make(front, change);
                bonus.into_iter().for_each(|id| front.history.append(id));
            })?;
            self.counters.tokens.add(u64::from(n) + u64::from(bonus.is_some()));
            Ok(())
        })
    }

    pub(crate) fn rollback(&self, req: RequestId, pos: u64) -> Result<(), TokenError> {
        self.with_front(req, |_, front, wakes| {
            Self::serving(front)?;
            let end = front.history.position();
            if pos > end {
                return Err(TokenError::Gap { end, pos });
            }
            Self::check_kept(front, pos)?;
            let change = Change { cut: Some(pos), ..Change::default() };
            self.deliver(req.slot(), Messages::new(change, std::iter::empty()), change.cuts(), wakes, || {
                Self::make(front, change)
            })
        })
    }

    pub(crate) fn fork(&self, parent: RequestId) -> Result<RequestId, TokenError> {
        let (history, profile, class) = self.with_front(parent, |_, front, _| {
            Self::serving(front)?;
            Ok((front.history.clone(), front.profile, front.class))
        })?;
        let child = self.admit(history, profile, class)?;
        self.counters.requests_forked.add(1);
        Ok(child)
    }

    pub(crate) fn preempt(&self, req: RequestId) -> Result<(), TokenError> {
        self.with_front(req, |slot, front, wakes| {
            Self::serving(front)?;
            let most = self.limits.requests;
            let one_more = |n| (n < most).then_some(n + 1);
            if self.preempted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
                return Err(TokenError::LimitReached(
                    "requests_max (as many may be preempted); finish the request instead",
                ));
            }
            let delivered = self.deliver(req.slot(), std::iter::once(Message::Preempt), 1, wakes, || {
                front.preempted = true;
                front.drafts.clear();
                slot.preempted.store(true, Ordering::Release);
            });
            if delivered.is_err() {
                self.preempted.fetch_sub(1, Ordering::Relaxed);
                return delivered;
            }
            let counts = if self.recount(slot, LIVE, PREEMPTED) { &self.live } else { &self.preempted };
            counts.fetch_sub(1, Ordering::Relaxed);
            self.uncount_interactive(slot);
            self.counters.requests_preempted.add(1);
            Ok(())
        })?;
        // Its waiter has nothing to wait for.
        (0..self.geometry.layers.len()).for_each(|table| self.wake_layer(req.slot(), table));
        Ok(())
    }

    pub(crate) fn resume(&self, req: RequestId, begin: Begin<'_>) -> Result<(), TokenError> {
        let history = self.seeded(&begin)?;
        self.with_front(req, |slot, front, wakes| {
            if !front.preempted {
                return Err(TokenError::BadState("the request is not preempted"));
            }
            self.count_live()?;
            slot.admission.leave(Admitted { history: history.clone(), class: begin.class });
            let delivered = self.deliver(req.slot(), std::iter::once(Message::Resume), 1, wakes, || {
                front.history.copy_from(&history);
                (front.profile, front.class, front.preempted) = (begin.profile, begin.class, false);
                slot.planned.store(begin.start_pos, Ordering::Relaxed);
                slot.preempted.store(false, Ordering::Release);
            });
            if delivered.is_err() {
                let _ = slot.admission.take();
                self.live.fetch_sub(1, Ordering::Relaxed);
                return delivered;
            }
            let counts = if self.recount(slot, PREEMPTED, LIVE) { &self.preempted } else { &self.live };
            counts.fetch_sub(1, Ordering::Relaxed);
            self.count_interactive(slot, begin.class);
            if slot.counted.load(Ordering::Acquire) == NONE {
                self.uncount_interactive(slot); // it ended before it was counted
            }
            Ok(())
        })
    }

    pub(crate) fn export_state(&self, req: RequestId) -> Result<Vec<u8>, TokenError> {
        self.with_front(req, |_, front, _| {
            Self::serving(front)?;
            let mut out = Vec::with_capacity(HEADER_BYTES + 4 * front.history.kept() + 64);
            out.extend(MAGIC);
            out.extend([FORMAT, front.profile as u8, front.class as u8, 0]);
            out.extend(front.history.export());
            Ok(out)
        })
    }

    pub(crate) fn import_state(&self, state: &[u8]) -> Result<RequestId, TokenError> {
        self.check_open()?;
        let bad = TokenError::BadImport;
        let Some((header, history)) = state.split_first_chunk::<HEADER_BYTES>() else {
            return Err(bad("it is too short"));
        };
        let [m0, m1, m2, m3, format, profile, class, _] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(bad("it is no exported request"));
        }
        if format != FORMAT {
            return Err(bad("it has another format; export and import with the same version"));
        }
        let profile =
            [Profile::Reference, Profile::Sglang, Profile::LlamaCpp].into_iter().find(|&p| p as u8 == profile);
        let class = [RequestClass::Interactive, RequestClass::Bulk].into_iter().find(|&c| c as u8 == class);
        let (Some(profile), Some(class)) = (profile, class) else { return Err(bad("its header is damaged")) };
        let mut imported = History::new(&self.keygen, self.limits.history_tail as usize);
        imported.import(history).map_err(|e| match e {
            ImportError::OtherKeygen { .. } => bad("it is of another model or token map"),
            ImportError::Version { .. } => {
                bad("its history has another format; export and import with the same version")
            }
            _ => bad("its history is damaged"),
        })?;
        self.admit(imported, profile, class)
    }

    /// Ends a request; idempotent. Its waiter gets an error, its reads in flight come home as orphans.
    pub(crate) fn end(&self, req: RequestId) {
        let Ok(slot) = self.slot_of(req) else { return };
        if !self.is_forked_child() && slot.tenure.end(req.generation()) {
            match slot.counted.swap(NONE, Ordering::AcqRel) {
                PREEMPTED => self.preempted.fetch_sub(1, Ordering::Relaxed),
                _ => self.live.fetch_sub(1, Ordering::Relaxed),
            };
            self.uncount_interactive(slot);
            self.counters.requests_ended.add(1);
            // Also when another thread runs the actor just now.
            (0..self.geometry.layers.len()).for_each(|table| self.wake_layer(req.slot(), table));
            self.run(req.slot());
        }
    }
}
