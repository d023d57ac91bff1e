//! Every limit of the scheduler in one table, and the memory that follows from it.

/// Upper bounds; 0 stands for the default. Units are last in each name.
///
/// [`MemoryBounds`] says what they cost. Memory is reserved at start and committed by the kernel on first use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Live requests. Default 256.
    pub requests_max: u32,
    /// Tokens recorded for one request and not yet planned (4 B each). Default 65,536.
    pub request_tokens_max: u32,
    /// Step slots: steps submitted and not yet released. Default 4, at least 2.
    pub steps_in_flight_max: u16,
    /// Rows of one step, padding included. Default 4096.
    pub step_tokens_max: u32,
    /// Tokens that one `await_layer` hands out. Default 512.
    pub await_tokens_max: u32,
    /// Tokens whose rows are planned ahead of the drain cursor, per request. Default 64, less if `prefetch_bytes_max` asks for it.
    pub ahead_tokens_max: u32,
    /// Drafts of one request. Default 16.
    pub draft_tokens_max: u32,
    /// Ids kept for rewriting positions and for steps that cover them once more, per request. Default 256.
    pub history_tail_max: u32,
    /// Messages for a request that wait while another thread runs its keygen actor. Default 256.
    pub mailbox_messages_max: u32,
    /// Registered destinations. Default 64.
    pub dests_max: u32,
    /// A layer of a step that is not complete after this time is ended, with zeros for what is missing. Microseconds, default 30 s.
    pub watchdog_us_max: u64,
    /// Bytes of rows held ahead of delivery, all requests together. Default 1 GiB.
    pub prefetch_bytes_max: u64,
    /// Read buffers of one I/O actor. Default 4 MiB.
    pub arena_bytes_max: u64,
    /// One read, after merging. Default 16,384, and never less than a widened row needs.
    pub read_bytes_max: u32,
    /// Reads in flight per I/O actor while an interactive request lives. Default 32.
    pub in_flight_interactive_max: u32,
    /// Reads in flight per I/O actor when only bulk requests live. Default 96: 64 keep the device busy, the rest is what completes while
    /// the actor is handling completions (1.00 of fio's rate at depth 64, where 64 gave 0.95).
    pub in_flight_bulk_max: u32,
    /// Reads in flight per I/O actor for bulk and speculative rows while an interactive request lives (of those allowed then). Default 16.
    pub in_flight_bulk_shared_max: u32,
    /// Rows of a lower class that were planned longer ago than this get one read in eight though higher ones are there, microseconds.
    /// Default 50,000.
    pub ageing_us_max: u32,
    /// Reads of an I/O actor that fail one after the other, in more places than one, before the scheduler gives up for good.
    /// Default 1024.
    pub read_failures_max: u32,
    /// Attempts to finish one read after `EINTR`, `EAGAIN` or a short read without progress. Default 8.
    pub retries_max: u32,
    /// Keygen workers for long prompts. Default 0: the caller hashes.
    pub workers_max: u16,
    /// Tokens of one call that the caller hashes itself when there are workers; the rest is handed over. Default 64.
    pub inline_tokens_max: u32,
}

/// What the limits cost at most, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryBounds {
    /// Destinations: (requests x `await_tokens_max` + `steps_in_flight_max` x `step_tokens_max`) x bytes of a token's rows. Requests are
    /// `requests_max`, as many that are preempted, and some to spare.
    pub destination_bytes: u64,
    /// Group buffers: rows read ahead and not yet delivered.
    pub group_bytes: u64,
    /// Recorded tokens.
    pub token_bytes: u64,
    /// Read buffers of all I/O actors.
    pub arena_bytes: u64,
    /// Cells, groups, plans and queues.
    pub bookkeeping_bytes: u64,
}

impl MemoryBounds {
    /// The sum.
    pub fn total_bytes(&self) -> u64 {
        self.destination_bytes + self.group_bytes + self.token_bytes + self.arena_bytes + self.bookkeeping_bytes
    }
}

/// Cells that row reads may have out at a time: `read_rows` half of them, so that `submit_rows` never stands behind bulk work.
#[cfg(not(loom))]
pub(crate) const ROW_CELLS: u32 = 1024;

/// Groups beyond those of cells and of one for each request: references that publishers and joiners hold for a moment after a cell has
/// gone. There are at most as many at a time as I/O actors and threads inside the scheduler.
#[cfg(not(loom))]
const GROUPS_SLACK: u32 = 256;

/// The limits in force: defaults filled in, derived sizes computed, ranges checked.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) requests: u32,
    /// Slots for them, and a few more: an ended request keeps its own until the last guard and copy have let go.
    pub(crate) request_slots: u32,
    pub(crate) request_tokens: u32,
    pub(crate) steps_in_flight: u16,
    pub(crate) step_tokens: u32,
    pub(crate) draft_tokens: u32,
    pub(crate) history_tail: u32,
    pub(crate) mailbox_messages: u32,
    pub(crate) dests: u32,
    pub(crate) watchdog_ns: u64,
    pub(crate) await_tokens: u32,
    pub(crate) ahead_tokens: u32,
    pub(crate) in_flight_interactive: u32,
    pub(crate) in_flight_bulk: u32,
    pub(crate) in_flight_bulk_shared: u32,
    pub(crate) ageing_ns: u64,
    pub(crate) read_failures: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) retries: u32,
    pub(crate) workers: u16,
    pub(crate) inline_tokens: u32,
    tables: u32,
}

#[cfg(not(loom))]
mod resolve {
    use super::*;
    use crate::StartError;
    use crate::actor::IoActor;
    use crate::geometry::Geometry;
    use crate::plan::{BANDS, PlanSlab};
    use engram_store::Table;

    fn limit(limit: &'static str, why: impl Into<String>) -> StartError {
        StartError::Limit { limit, why: why.into() }
    }

    impl Resolved {
        pub(crate) fn new(
            limits: &Limits,
            device_share: Option<f32>,
            geometry: &Geometry,
            tables: &[Table],
        ) -> Result<Self, StartError> {
            let or = |value: u32, default: u32| if value == 0 { default } else { value };
            let in_range = |name, value: u32, max: u32| {
                if value <= max { Ok(value) } else { Err(limit(name, format!("{value} is above {max}"))) }
            };
            let requests = in_range("requests_max", or(limits.requests_max, 256), 1 << 16)?;
            // As many again may be preempted.
            let request_slots = 2 * requests + (requests / 8).max(4);
            let request_tokens = in_range("request_tokens_max", or(limits.request_tokens_max, 65_536), 1 << 19)?
                .max(32)
                .next_power_of_two();
            let steps = in_range("steps_in_flight_max", or(limits.steps_in_flight_max.into(), 4), 64)?.max(2);
            let step_tokens = in_range("step_tokens_max", or(limits.step_tokens_max, 4096), 1 << 20)?;
            let draft_tokens = in_range("draft_tokens_max", or(limits.draft_tokens_max, 16), 1 << 12)?;
            let history_tail = in_range("history_tail_max", or(limits.history_tail_max, 256), 1 << 16)?;
            let await_tokens = in_range("await_tokens_max", or(limits.await_tokens_max, 512), 1 << 20)?;
            let token_bytes: u64 = geometry.token_bytes.iter().map(|&b| b as u64).sum();
            let prefetch_bytes = if limits.prefetch_bytes_max == 0 { 1 << 30 } else { limits.prefetch_bytes_max };
            let affordable = prefetch_bytes / (token_bytes * u64::from(request_slots));
            if affordable == 0 {
                let need = token_bytes * u64::from(request_slots);
                return Err(limit(
                    "prefetch_bytes_max",
                    format!(
                        "{requests} requests (and slots to spare) need {need} bytes for a token each; raise it or lower requests_max"
                    ),
                ));
            }
            let ahead = in_range("ahead_tokens_max", or(limits.ahead_tokens_max, 64), 1 << 12)?;
            let ahead_tokens = ahead.min(u32::try_from(affordable).unwrap_or(u32::MAX));
            // Nodes of cells and orders are numbered by 32 bits, with room to spare.
            let nodes =
                u64::from(request_slots) * u64::from(ahead_tokens) * (tables.len() * geometry.orders.len()) as u64;
            if nodes > 1 << 30 {
                return Err(limit("ahead_tokens_max", "requests x tokens x tables x orders is above 2^30; lower one"));
            }
            let read_max =
                in_range("read_bytes_max", or(limits.read_bytes_max, 16_384), 1 << 20)?.next_multiple_of(4096);
            // An extent of b bytes that begins anywhere lies in at most b / 4096 + 2 pages.
            let widest = tables.iter().flat_map(Table::parts).map(|p| p.bytes).max().unwrap_or(0);
            let slot_bytes = read_max.max((widest / 4096 + 2) * 4096);
            let arena = if limits.arena_bytes_max == 0 { 4 << 20 } else { limits.arena_bytes_max };
            let slots_max = u32::try_from(arena / u64::from(slot_bytes)).unwrap_or(u32::MAX).min(4096);
            if slots_max == 0 {
                return Err(limit("arena_bytes_max", format!("{arena} bytes hold no read of {slot_bytes} bytes")));
            }
            let share = device_share.unwrap_or(1.0);
            if !(share > 0.0 && share <= 1.0) {
                return Err(limit("device_share", format!("{share} is not in (0, 1]")));
            }
            // Several processes on one disk: each takes its part of the depth.
            let depth = |value: u32, default: u32| ((or(value, default) as f32 * share) as u32).clamp(1, slots_max);
            let in_flight_bulk = depth(limits.in_flight_bulk_max, 96);
            let in_flight_interactive = depth(limits.in_flight_interactive_max, 32);
            Ok(Self {
                requests,
                request_slots,
                request_tokens,
                steps_in_flight: steps as u16,
                step_tokens,
                draft_tokens,
                history_tail,
                mailbox_messages: in_range("mailbox_messages_max", or(limits.mailbox_messages_max, 256), 1 << 20)?
                    .max(2 * draft_tokens + 4)
                    .next_power_of_two(),
                dests: in_range("dests_max", or(limits.dests_max, 64), 1 << 16)?,
                watchdog_ns: match limits.watchdog_us_max {
                    0 => 30_000_000_000,
                    us => us.saturating_mul(1000),
                },
                await_tokens,
                ahead_tokens,
                in_flight_interactive,
                in_flight_bulk,
                in_flight_bulk_shared: depth(limits.in_flight_bulk_shared_max, 16),
                ageing_ns: u64::from(or(limits.ageing_us_max, 50_000)) * 1000,
                read_failures: or(limits.read_failures_max, 1024),
                slot_bytes,
                retries: or(limits.retries_max, 8),
                workers: limits.workers_max,
                inline_tokens: or(limits.inline_tokens_max, 64),
                tables: tables.len() as u32,
            })
        }

        /// Reads in flight at most, and buffer slots.
        pub(crate) fn slots(&self) -> u32 {
            self.in_flight_bulk.max(self.in_flight_interactive)
        }

        /// Cells that one request may have out.
        pub(crate) fn request_cells(&self) -> u32 {
            self.ahead_tokens * self.tables
        }

        pub(crate) fn cells(&self, _: &Geometry) -> u32 {
            self.request_slots * self.request_cells() + ROW_CELLS
        }

        pub(crate) fn groups(&self, geometry: &Geometry) -> u32 {
            self.request_slots * (self.request_cells() * geometry.orders.len() as u32 + 1) + ROW_CELLS + GROUPS_SLACK
        }

        /// Each plan that some actor has not started whole holds an unfinished group of a cell that exists (an orphan, maybe), and a
        /// cell's groups are opened in one plan; but for those that a thread is sending or raising just now. Not a plan per token of the window: a layer that stalls keeps one cell of each token, while the cells of the
        /// other layers come back and serve further tokens.
        pub(crate) fn plans(&self) -> u32 {
            self.request_slots * self.request_cells() + ROW_CELLS + GROUPS_SLACK
        }

        /// Ids that a request's actor records: those not planned, the tail, drafts; and as many again as the front may be behind with what
        /// is planned (a cut on its way, tokens that were let go of to be planned again).
        pub(crate) fn recorded_ids(&self) -> usize {
            (self.request_tokens + 2 * self.history_tail + self.ahead_tokens + self.draft_tokens) as usize
        }

        /// Where a step's destination of ours begins, for one table: those of requests come first.
        pub(crate) fn destination_offset(&self, geometry: &Geometry, step: u32, table: usize) -> usize {
            let token_bytes: usize = geometry.token_bytes.iter().sum();
            let before: usize = geometry.token_bytes[..table].iter().sum();
            let (own, slots) =
                (step.min(self.request_slots) as usize, step.saturating_sub(self.request_slots + 1) as usize);
            let (await_tokens, step_tokens) = (self.await_tokens as usize, self.step_tokens as usize);
            let tokens = if step < self.request_slots { await_tokens } else { step_tokens };
            token_bytes * (own * await_tokens + slots * step_tokens) + before * tokens
        }

        pub(crate) fn destination_bytes(&self, geometry: &Geometry) -> u64 {
            let tokens = u64::from(self.request_slots) * u64::from(self.await_tokens)
                + u64::from(self.steps_in_flight) * u64::from(self.step_tokens);
            geometry.token_bytes.iter().map(|&b| b as u64).sum::<u64>() * tokens
        }

        pub(crate) fn fence_bytes(&self, geometry: &Geometry) -> u64 {
            let words = size_of::<crate::protocol::fence::FenceWords>() * geometry.layers.len();
            u64::from(self.steps_in_flight) * words as u64
        }

        /// Words of rows, entries and row ids of all steps.
        fn steps_bytes(&self, geometry: &Geometry) -> u64 {
            let row = size_of::<crate::protocol::step_row::StepRow>() as u64;
            let failure = size_of::<crate::failure::Failure>() as u64;
            let entry = size_of::<crate::step::StepEntry>() as u64;
            let tables = geometry.layers.len() as u64;
            let own = u64::from(self.request_slots) * u64::from(self.await_tokens) * tables * row;
            let slot_row = tables * (row + failure) + entry + 8 * geometry.columns as u64;
            own + u64::from(self.steps_in_flight) * u64::from(self.step_tokens) * slot_row
        }

        pub(crate) fn memory(&self, geometry: &Geometry, actors: usize) -> MemoryBounds {
            let (cells, groups) = (u64::from(self.cells(geometry)), u64::from(self.groups(geometry)));
            let requests = u64::from(self.request_slots);
            let per_cell = size_of::<crate::protocol::cell::Cell<crate::core::CellBody>>() + 4 * geometry.orders.len();
            let per_group = size_of::<crate::protocol::group::Group<crate::core::GroupKey>>() + 8 * geometry.heads + 32;
            let per_plan = PlanSlab::BODY_BYTES + (8 + BANDS * 16 + IoActor::PLAN_BYTES) * actors;
            MemoryBounds {
                destination_bytes: self.destination_bytes(geometry),
                group_bytes: groups * geometry.group_bytes as u64,
                token_bytes: requests * 4 * (self.recorded_ids() as u64).next_power_of_two(),
                arena_bytes: u64::from(self.slots()) * u64::from(self.slot_bytes) * actors as u64,
                bookkeeping_bytes: cells * per_cell as u64
                    + groups * per_group as u64
                    + u64::from(self.plans()) * per_plan as u64
                    + requests * size_of::<crate::request::Slot>() as u64
                    + self.steps_bytes(geometry)
                    + IoActor::bookkeeping_bytes(self) * actors as u64,
            }
        }
    }
}
