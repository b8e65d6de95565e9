//! A processor for the server, and another for whoever asks it.

use std::thread;

/// Where servers are.
pub(crate) const SERVER: usize = 1;
/// Where clients are, and what servers themselves need others for.
pub(crate) const CLIENT: usize = 0;

/// Does it on that processor, if there is one. A process that is started meanwhile stays there.
pub(crate) fn on<R: Send>(processor: usize, work: impl FnOnce() -> R + Send) -> R {
    // In a thread of its own, because a thread that has been bound sees only the processor it is bound to.
    thread::scope(|scope| {
        let bound = scope.spawn(move || {
            let processors = core_affinity::get_core_ids().unwrap_or_default();
            if let Some(processor) = processors.get(processor) {
                core_affinity::set_for_current(*processor);
            }
            work()
        });
        bound.join().expect("the work does not panic")
    })
}
