//! The worst single insert while a limiter grows from nothing to a million keys. A table that moves all its keys at once
//! makes one caller wait for all of them.
//!
//! The system may take the processor away in the middle of any insert, and the worst of a million finds that moment.
//! Hence many processes, the middle and the best of their worsts, and a row that inserts nothing and takes as long: what
//! it shows is the machine's doing.

use std::hint::black_box;
use std::time::Instant;

use crate::child::{self, Empty, Errand, NOTHING};
use crate::goal::Goal;
use crate::keys::{LIVE, Text};
use crate::machine;
use crate::ours::TIDEGATE;
use crate::peers::governor::GOVERNOR;
use crate::plan::Plan;
use crate::report::Section;

/// The name of the errand.
pub(crate) const TASK: &str = "insert";

const WORST: &str = "worst insert";

pub(crate) fn section(plan: &Plan) -> Section {
    let errands =
        [NOTHING, GOVERNOR, TIDEGATE].map(|who| Errand { task: TASK, what: WORST, who, keys: LIVE });
    let title = "Growing to a million keys";
    Section {
        title,
        unit: "µs",
        text: "Microseconds of the worst single insert of a key of text, each time in a process of its own: \
               the median of the worsts (the least – the most).",
        measured: child::measure(title, &errands, plan.repeats),
        goals: vec![Goal::same(WORST, TIDEGATE, GOVERNOR, 0.02, 0.005)],
    }
}

/// The longest that any insert took, in microseconds.
pub(crate) fn worst(mut ask: Empty, keys: u32) -> f64 {
    machine::pin(0);
    let mut text = Text::new();
    let took = |index| {
        let key = text.set(index);
        let start = Instant::now();
        black_box(ask(black_box(key)));
        start.elapsed()
    };
    (0..keys).map(took).max().unwrap_or_default().as_secs_f64() * 1e6
}
