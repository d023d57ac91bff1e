//! Messages: what a request's front has decided, on its way to the request's keygen actor.

use engram_keygen::Id;

/// A message to a request's keygen actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// A committed token at the end.
    Token {
        id: Id,
        prefill: bool,
    },
    /// One more draft.
    Draft(Id),
    /// The first drafts are committed.
    Commit(u32),
    /// Cuts everything from this position on, drafts included.
    Cut(u64),
    Preempt,
    /// What is to be resumed lies with the admission.
    Resume,
}

impl Message {
    const KIND_SHIFT: u32 = 56;

    /// Whether it may cut the range that is awaited.
    pub(crate) fn cuts(self) -> bool {
        matches!(self, Self::Cut(_) | Self::Preempt | Self::Resume)
    }

    pub(crate) fn to_word(self) -> u64 {
        let (kind, value) = match self {
            Self::Token { id, prefill: false } => (0, u64::from(id.to_word())),
            Self::Token { id, prefill: true } => (1, u64::from(id.to_word())),
            Self::Draft(id) => (2, u64::from(id.to_word())),
            Self::Commit(n) => (3, u64::from(n)),
            Self::Cut(to) => (4, to),
            Self::Preempt => (5, 0),
            Self::Resume => (6, 0),
        };
        kind << Self::KIND_SHIFT | value
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let value = word & ((1 << Self::KIND_SHIFT) - 1);
        let id = Id::from_word(value as u32);
        match word >> Self::KIND_SHIFT {
            0 => Self::Token { id, prefill: false },
            1 => Self::Token { id, prefill: true },
            2 => Self::Draft(id),
            3 => Self::Commit(value as u32),
            4 => Self::Cut(value),
            5 => Self::Preempt,
            _ => Self::Resume,
        }
    }
}

/// Positions stay below this: a position fits a message, and a word together with a range.
pub(crate) const POSITION_MAX: u64 = 1 << 40;

/// What a call changes: cut at a position, commit drafts, append tokens. In this order.
#[derive(Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) commit: u32,
    pub(crate) cut: Option<u64>,
    /// Index of the first token to append.
    pub(crate) skip: usize,
}

impl Change {
    /// How many of its messages are cuts.
    pub(crate) fn cuts(&self) -> u64 {
        u64::from(self.cut.is_some())
    }
}

/// A change and what is appended after it, as messages.
pub(crate) struct Messages<I> {
    commit: Option<Message>,
    cut: Option<Message>,
    rest: I,
}

impl<I: ExactSizeIterator<Item = Message>> Messages<I> {
    pub(crate) fn new(change: Change, rest: I) -> Self {
        let commit = (change.commit > 0).then_some(Message::Commit(change.commit));
        Self { commit, cut: change.cut.map(Message::Cut), rest }
    }
}

impl<I: ExactSizeIterator<Item = Message>> Iterator for Messages<I> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        self.commit.take().or_else(|| self.cut.take()).or_else(|| self.rest.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = usize::from(self.commit.is_some()) + usize::from(self.cut.is_some()) + self.rest.len();
        (n, Some(n))
    }
}

impl<I: ExactSizeIterator<Item = Message>> ExactSizeIterator for Messages<I> {}
