//! # How much may pass, and what a request takes

use super::{MOST_PARTS, Placed, too_many};
use crate::config::decode::{OneOrMany, Text};
use crate::config::fault::Fault;
use crate::config::file::{CostTable, CostText, Quota};
use crate::config::limit::{self, has_room_for};
use crate::config::source::{At, Span};
use crate::config::{Reading, Store};
use crate::rules::{Cost, Limit};

/// So much of a text is repeated in a sentence about it, in characters.
const LONGEST_SHOWN: usize = 60;

impl Reading<'_> {
    pub(super) fn limits(&mut self, quotas: &OneOrMany<Quota>, store: &Store) -> Vec<Placed<Limit>> {
        let mut limits: Vec<Placed<Limit>> = Vec::new();
        if let Some(Quota(beyond)) = quotas.0.get(MOST_PARTS) {
            self.fault(too_many(quotas.0.len(), "quotas in one rule", beyond.span));
            return limits;
        }
        for Quota(text) in &quotas.0 {
            let Some(limit) = self.limit(text) else { continue };
            if let Some((_, first)) = limits.iter().find(|(other, _)| *other == limit) {
                let message = format!("the quota `{}` is there twice", text.value);
                self.fault(
                    Fault::error("twice", message).at(text.span).label("again").beside(*first, "first here"),
                );
            }
            self.check_store(&limit, store, text.span);
            limits.push((limit, text.span));
        }
        limits
    }

    fn limit(&mut self, text: &Text) -> Option<Limit> {
        limit::parse(&text.value)
            .map_err(|wrong| {
                let span = self.inside(text, wrong.at);
                self.fault(
                    Fault::error("quota", format!("`{}` is no quota", one_line(&text.shown())))
                        .at(span)
                        .label(wrong.what)
                        .maybe_help(wrong.help),
                );
            })
            .ok()
    }

    /// What a Redis cannot do.
    fn check_store(&mut self, limit: &Limit, store: &Store, span: Span) {
        let Store::Redis(_) = store else { return };
        let what = match limit {
            Limit::AtOnce { lease, .. } if lease.as_millis() < 100 => {
                "a lease of less than 100ms cannot be renewed in time through Redis"
            }
            Limit::Rate(rate) => match (rate.encode().letter(), rate.encode().numbers()) {
                (b'c', [_, period, cells, _]) if period.saturating_mul(*cells) >= 1 << 53 => {
                    "so many cells in so long a window cannot be counted exactly in Redis; take fewer"
                }
                _ => return,
            },
            Limit::AtOnce { .. } => return,
        };
        self.fault(Fault::error("store", what).at(span).label("too much for this store"));
    }

    pub(super) fn cost(&mut self, cost: Option<&At<CostText>>) -> Cost {
        let Some(At { value, span }) = cost else { return Cost::Asked };
        match value {
            CostText::Fixed(0) => {
                self.fault(zero(*span, "a cost of 0 takes nothing, so the rule would limit nothing"));
                Cost::Asked
            }
            CostText::Fixed(cost) => Cost::Fixed(*cost),
            CostText::From(table) => {
                let CostTable { from, per, missing } = &**table;
                if let Some(At { value: 0, span }) = per {
                    self.fault(zero(*span, "nothing can be counted in units of 0"));
                }
                let per = per.map_or(1, |per| per.value.max(1));
                let name = from.value.as_str().into();
                Cost::From { name, per, missing: missing.map(|missing| missing.value) }
            }
        }
    }

    pub(super) fn check_cost(&mut self, cost: &Cost, text: Option<&At<CostText>>, limits: &[Placed<Limit>]) {
        let (Some(text), Cost::Fixed(cost) | Cost::From { missing: Some(cost), .. }) = (text, cost) else {
            return;
        };
        for (_, quota) in limits.iter().filter(|(limit, _)| !has_room_for(limit, *cost)) {
            self.fault(
                Fault::error("cost", format!("a request costs {cost}, and never so much is free at once"))
                    .at(*quota)
                    .label("too small for the cost")
                    .beside(text.span, "the cost")
                    .help("raise the burst, or lower the cost"),
            );
        }
    }
}

/// A text as part of a sentence: in one line, and not longer than a line.
fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn zero(span: Span, what: &str) -> Fault {
    Fault::error("zero", what).at(span).label("expected 1 or more")
}
