//! Bytes for each live key, as the system counts them: what the table takes, what the allocator wastes, what growing
//! leaves behind. At 1.0 and at 1.1 million, because a table that doubles looks best just before it does.

use crate::child::{self, Empty, Errand};
use crate::goal::Goal;
use crate::keys::Text;
use crate::machine;
use crate::ours::TIDEGATE;
use crate::peers::governor::GOVERNOR;
use crate::plan::Plan;
use crate::report::Section;

/// The name of the errand.
pub(crate) const TASK: &str = "memory";

const ROUND: &str = "1.0 M keys";
const BEYOND: &str = "1.1 M keys";

/// Few are enough: memory does not depend on who else is running.
const MOST_REPEATS: usize = 3;

pub(crate) fn section(plan: &Plan) -> Section {
    let errand = |what, who, keys| Errand { task: TASK, what, who, keys };
    let errands = [
        errand(ROUND, GOVERNOR, 1_000_000),
        errand(ROUND, TIDEGATE, 1_000_000),
        errand(BEYOND, GOVERNOR, 1_100_000),
        errand(BEYOND, TIDEGATE, 1_100_000),
    ];
    let title = "Memory";
    Section {
        title,
        unit: "bytes",
        text: "Bytes of resident memory for each live key of 16 bytes of text. The text and one word of state \
               alone are 24. governor keeps the text; Tidegate keeps a fingerprint of it.",
        measured: child::measure(title, &errands, plan.repeats.min(MOST_REPEATS)),
        goals: [ROUND, BEYOND].map(|what| Goal::same(what, TIDEGATE, GOVERNOR, 0.5, 0.35)).into(),
    }
}

/// How much the process has grown by when all keys are in; `None` if one was refused or the system does not tell.
pub(crate) fn bytes_per_key(empty: impl FnOnce() -> Empty, keys: u32) -> Option<f64> {
    let mut text = Text::new();
    let before = machine::resident()?;
    let mut ask = empty();
    if !(0..keys).all(|index| ask(text.set(index))) {
        return None;
    }
    let after = machine::resident()?;
    Some(after.saturating_sub(before) as f64 / f64::from(keys))
}
