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
    /// Tokens that one `await_layer` hands out. Default 512.
    pub await_tokens_max: u32,
    /// Tokens whose rows are planned ahead of the drain cursor, per request. Default 64, less if `prefetch_bytes_max` asks for it.
    pub ahead_tokens_max: u32,
    /// Bytes of rows held ahead of delivery, all requests together. Default 1 GiB.
    pub prefetch_bytes_max: u64,
    /// Read buffers of one I/O actor. Default 4 MiB.
    pub arena_bytes_max: u64,
    /// One read, after merging. Default 16,384, and never less than a widened row needs.
    pub read_bytes_max: u32,
    /// Reads in flight per I/O actor while an interactive request lives. Default 32.
    pub in_flight_interactive_max: u32,
    /// Reads in flight per I/O actor when only bulk requests live. Default 64.
    pub in_flight_bulk_max: u32,
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
    /// Destinations: `requests_max` x `await_tokens_max` x bytes of a token's rows.
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
