//! One limiter, no keys: a clock, a word, an answer. Here there is nothing to win but nothing to lose.

use crate::floor;
use crate::goal::Goal;
use crate::ours::{self, REQUEST, TIDEGATE};
use crate::peers::governor::{self, GOVERNOR};
use crate::plan::Plan;
use crate::report::Section;
use crate::rounds::measure;

const ALLOWED: &str = "allowed";
const REFUSED: &str = "refused";
const ALLOWED_ALL: &str = "allowed, all read";
const REFUSED_ALL: &str = "refused, all read";
const TWO: &str = "allowed, 2 threads";

pub(crate) fn section(plan: &Plan) -> Section {
    let mut cases = floor::clocks(ALLOWED);
    cases.extend([floor::allowed(ALLOWED, 1), governor::allowed(ALLOWED, 1), ours::allowed(ALLOWED, 1)]);
    cases.push(ours::allowed_request(ALLOWED));
    cases.extend([floor::refused(REFUSED), governor::refused(REFUSED), ours::refused(REFUSED)]);
    cases.extend([ours::allowed_all_read(ALLOWED_ALL), ours::refused_all_read(REFUSED_ALL)]);
    cases.extend([floor::allowed(TWO, 2), governor::allowed(TWO, 2), ours::allowed(TWO, 2)]);
    cases.extend(governor::yes_or_no(ALLOWED, REFUSED));
    cases.push(governor::remaining(ALLOWED_ALL));
    let title = "One limiter";
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each decision on each thread, one thread unless it says two. *All read*: \
               remaining and reset too, held against governor's plain answer, which has neither.",
        measured: measure(title, &cases, &plan.direct),
        goals: goals(),
    }
}

fn goals() -> Vec<Goal> {
    let goal = |what, required, aim| Goal::same(what, TIDEGATE, GOVERNOR, required, aim);
    vec![
        goal(ALLOWED, 1.1, 1.0),
        Goal::same(ALLOWED, REQUEST, TIDEGATE, 1.1, 1.0),
        goal(REFUSED, 1.1, 1.0),
        goal(ALLOWED_ALL, 1.4, 1.2).against(ALLOWED),
        goal(REFUSED_ALL, 1.4, 1.2).against(REFUSED),
        goal(TWO, 0.65, 0.5),
    ]
}
