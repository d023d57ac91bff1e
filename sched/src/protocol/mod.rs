//! The concurrency protocols, one file each, free of I/O and of each other.
//!
//! Each file states its words, its named events, what pairs with what, and why nothing is lost. `loom-tests/` explores these very
//! types; [`crate::sync::seeded`] lists the bugs that the models are shown to catch.

pub mod admission;
pub mod ask;
pub mod cell;
pub mod closing;
pub mod credit;
pub mod doorbell;
pub mod fence;
pub mod group;
pub mod index_stack;
pub mod layer_gate;
pub mod lease;
pub mod mailbox;
pub mod plan_queue;
pub mod plan_slab;
pub mod run_gate;
pub mod step_row;
pub mod taker;
pub mod tenure;
pub mod wish_list;
