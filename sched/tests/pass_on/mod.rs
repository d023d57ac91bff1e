//! For backends that stand between an actor and another backend: passes on the calls that they do not meddle with.

/// In an `impl Backend`: the named methods do what those of the field `inner` do.
macro_rules! pass_on {
    ($($method:ident),*) => { $(pass_on!(@ $method);)* };
    (@ alignment) => {
        fn alignment(&self, file: engram_store::FileId) -> u32 {
            self.inner.alignment(file)
        }
    };
    (@ slot_bytes) => {
        fn slot_bytes(&self) -> u32 {
            self.inner.slot_bytes()
        }
    };
    (@ slots) => {
        fn slots(&self) -> u32 {
            self.inner.slots()
        }
    };
    (@ queue) => {
        fn queue(&mut self, op: engram_sched_core::io::ReadOp) {
            self.inner.queue(op);
        }
    };
    (@ submit) => {
        fn submit(&mut self) {
            self.inner.submit();
        }
    };
    (@ reap) => {
        fn reap(
            &mut self,
            wait: engram_sched_core::io::Wait,
            out: &mut Vec<engram_sched_core::io::Completion>,
        ) -> Result<(), i32> {
            self.inner.reap(wait, out)
        }
    };
    (@ slot) => {
        fn slot(&self, slot: u32) -> &[u8] {
            self.inner.slot(slot)
        }
    };
    (@ waker) => {
        fn waker(&self) -> std::sync::Arc<dyn engram_sched_core::io::WakeBackend> {
            self.inner.waker()
        }
    };
    (@ drain) => {
        fn drain(&mut self, timeout: std::time::Duration) -> usize {
            self.inner.drain(timeout)
        }
    };
    (@ report) => {
        fn report(&self) -> engram_sched_core::io::BackendReport {
            self.inner.report()
        }
    };
}
