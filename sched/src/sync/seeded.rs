//! Seeded bugs: the twins that the loom models must catch.
//!
//! A model that passes proves little unless it is known to fail when the protocol is wrong. Each protocol names its weak spots
//! with [`Bug`] and asks `is` there; under `cfg(loom)` a test plants one bug for the length of a model, in production builds the
//! question is a constant `false` and costs nothing.

/// A planted bug. Each breaks one step of one protocol; `loom-tests/` shows that a model notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Bug {
    /// The producer's fence between "push" and "is the actor asleep?" is dropped.
    DoorbellRingFence = 1,
    /// The sleeper's fence between "announce" and "is the queue empty?" is dropped.
    DoorbellSleepFence,
    /// `close` does not wait for pushes under way.
    QueueCloseIgnoresPushers,
    /// The runner lets go of the gate without looking at what came meanwhile.
    GateForgetsPending,
    /// The runner's work is not released to the next runner.
    GateReleaseRelaxed,
    /// A token's tail is published before its word is written.
    MailboxTailFirst,
    /// The runner frees ring words before it has read them.
    MailboxHeadFirst,
    /// `end` ignores a push under way, so the slot is recycled under it.
    TenureIgnoresPush,
    /// A hold is taken without comparing the generation.
    TenureSkipsGeneration,
    /// A bound cell's last depositor does not claim: binder and depositor may both copy, or neither.
    CellBindIgnoresReady,
    /// The last deposit does not acquire the other depositors' bytes.
    CellDepositRelaxed,
    /// An orphan is returned to the pool though deposits are outstanding.
    CellOrphanFreesEarly,
    /// The last copy of a layer does not acquire the others, nor release its own.
    LayerCompleteRelaxed,
    /// The waiter checks first and registers its waker afterwards.
    LayerRegisterLate,
    /// A joiner of a group does not check that the list of waiters is still open.
    GroupJoinIgnoresClosed,
    /// A group is pinned though its last reference is gone.
    GroupPinsDead,
    /// The free list's tag does not move.
    StackTagFrozen,
    /// A credit given while somebody wants one does not say so.
    CreditForgetsWant,
    /// A new range is asked for while guards of the last one are alive.
    TakerIgnoresGuards,
    /// A cut takes back the range that was asked for after it.
    TakerCutsAsked,
    /// Shutdown wakes the waiters before it raises the flag that they check.
    ShutdownWakesFirst,
    /// An actor sees all groups of a plan, also those that need nothing of it.
    PlanIgnoresShares,
    /// A plan's body is given back by each of its readers, not by the last.
    PlanReturnedEarly,
    /// A bound cell that its request lets go of is not told apart, and so not counted at its layer gate.
    CellOrphanForgetsBound,
    /// The slot is recycled without a look at its layer gates.
    LayerAlwaysQuiet,
    /// A new range begins with the gates of the last one.
    LayerResetSkipped,
    /// A wish does not carry what the asker has prepared.
    AskRelaxed,
    /// What admits a life can be found before the life has begun.
    AdmissionFirst,
    /// A finder joins a group without comparing its key. The step is in `core.rs`: the model asks, in its copy of it.
    GroupSkipsKey,
    /// A finder joins a group that was opened outside of the index. As above.
    GroupIgnoresPlace,
    /// A wish is left without what its step has set up.
    WishRelaxed,
    /// A binder does not notice that its row was taken meanwhile.
    StepRowForgetsTaken,
    /// A row is taken from whatever step has it now.
    StepRowSkipsGeneration,
    /// A lease is held whatever its generation.
    LeaseSkipsGeneration,
    /// The fence is raised before the status is there.
    FenceBeforeStatus,
    /// A submitter looks at the end of service without ordering that look behind its claim.
    ClaimSkipsFence,
    /// A runner asks whether the life is live before it looks for what admits it. The step is in `request.rs`: the model asks.
    LookAsksLiveFirst,
    /// A raiser takes a hold on whatever life the plan is in.
    RaiseIgnoresGeneration,
    /// An entry of an urgent band does not keep the plan from being given back.
    RaiseWithoutHold,
    /// An actor that has started its share of a plan finds the share again when the plan comes through its urgent band.
    ReleaseKeepsShare,
    /// The actor reads which groups are raised before it clears QUEUED.
    RaiseReadFirst,
    /// The sender looks for wishes first and names the plan afterwards.
    LinkForgetsWish,
    /// A joiner does not see that the group is abandoned.
    GroupJoinsAbandoned,
    /// A group is abandoned though somebody has joined since it was looked at.
    GroupAbandonsBlindly,
}

#[cfg(loom)]
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Plants `bug` (or none) for the models that follow.
#[cfg(loom)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |b| b as u32), std::sync::atomic::Ordering::SeqCst);
}

/// Whether `bug` is planted. Open to the models, for steps of which they hold a copy.
#[cfg(loom)]
pub fn is(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::SeqCst) == bug as u32
}

/// Whether `bug` is planted: never, outside of loom.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn is(bug: Bug) -> bool {
    let _ = bug;
    false
}
