//! # Whether a rule is leased
//!
//! A lease saves calls to a Redis, so there has to be one; and only a bucket or a fixed window can be handed out in
//! lots. Where lots would be too small to be worth it the rule stays strict, which is no mistake in itself; but who
//! writes `lease` where nothing can come of it is told.

use std::time::Duration;

use tidegate_core::{Algorithm, Micros, Rule as Rate};
use tidegate_redis::Lease;

use crate::config::decode::{Text, Time};
use crate::config::fault::Fault;
use crate::config::file::{LeaseTable, LeaseText, Quota, RuleTable};
use crate::config::limit;
use crate::config::near::did_you_mean;
use crate::config::source::{At, Span};
use crate::config::{Reading, Store};
use crate::rules::{Limit, Rule};

const TTLS: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(3_600);

impl Reading<'_> {
    pub(super) fn lease(&mut self, table: &RuleTable, store: &Store) -> Option<Lease> {
        let At { value, span } = table.lease.as_ref()?;
        let lease = match value {
            LeaseText::Word(word) => self.lease_word(word)?,
            LeaseText::Table(how) => self.lease_table(how),
        };
        let Store::Redis(redis) = store else {
            self.no_store_to_lease_from(*span);
            return None;
        };
        let quotas: Vec<_> = quotas(table).collect();
        let mut can_all = true;
        for text in
            quotas.iter().filter(|text| limit::parse(&text.value).is_ok_and(|limit| burst(&limit).is_none()))
        {
            can_all = false;
            self.cannot_lease(text, *span);
        }
        let is_small = |text: &&Text| most_at_a_time(&lease, &text.value, redis.nodes).is_none();
        if can_all && !quotas.is_empty() && quotas.iter().all(is_small) {
            self.nothing_to_lease(redis.nodes, *span);
        }
        can_all.then_some(lease)
    }

    fn lease_word(&mut self, word: &Text) -> Option<Lease> {
        let help = match word.value.as_str() {
            "on" => return Some(Lease::new()),
            "off" => return None,
            "true" | "yes" => Some("write `on`".to_owned()),
            "false" | "no" => Some("write `off`".to_owned()),
            other => did_you_mean(other, ["on", "off"]),
        };
        self.fault(
            Fault::error("lease", format!("`{}` is no way to lease", word.shown()))
                .at(word.span)
                .label("expected `on`, `off`, or a table with `stock` or `ttl`")
                .maybe_help(help),
        );
        None
    }

    fn lease_table(&mut self, table: &LeaseTable) -> Lease {
        let LeaseTable { stock, ttl } = table;
        let lease = match ttl {
            Some(At { value: Time(ttl), span }) => {
                self.check_ttl(*ttl, *span);
                Lease::new().ttl(*ttl)
            }
            None => Lease::new(),
        };
        match stock.map(|stock| (stock.value.0, stock.span)) {
            Some((0, span)) => {
                let fault = Fault::error("zero", "a stock of 0 leaves nothing to lease");
                self.fault(
                    fault.at(span).label("expected 1 or more").help("write `lease: off` if that is meant"),
                );
                lease
            }
            Some((stock, _)) => lease.stock(stock),
            None => lease,
        }
    }

    fn check_ttl(&mut self, ttl: Duration, span: Span) {
        if !TTLS.contains(&ttl) {
            self.fault(
                Fault::error("lease", format!("a lot cannot be leased for {ttl:?}"))
                    .at(span)
                    .label("expected 20ms to 1h")
                    .help(
                        "a node that dies takes what it holds with it for so long; a second or two is usual",
                    ),
            );
        }
    }

    fn no_store_to_lease_from(&mut self, span: Span) {
        self.fault(
            Fault::error("lease", "a lease saves calls to a Redis, and the counts are in memory")
                .at(span)
                .label("nothing to lease from")
                .help("remove it, or keep the counts in Redis: `store: {redis: {url: redis://localhost}}`"),
        );
    }

    fn cannot_lease(&mut self, quota: &Text, lease: Span) {
        self.fault(
            Fault::error("lease", format!("`{}` cannot be leased", quota.shown().trim()))
                .at(quota.span)
                .label("expected a token bucket or a fixed window")
                .beside(lease, "leased here")
                .help("put it into a rule of its own, which stays strict"),
        );
    }

    fn nothing_to_lease(&mut self, nodes: u32, span: Span) {
        let least = 4 * (u64::from(nodes) + 1);
        self.fault(
            Fault::warning("lease-small", "the rule stays strict: what could be leased of it is too little")
                .at(span)
                .label(format!("a burst or a stock of {least} or more is worth it"))
                .help(format!("that is 4 for each node and one more, and `store.redis.nodes` is {nodes}")),
        );
    }

    pub(super) fn show_lease(&mut self, table: &RuleTable, rule: &Rule, store: &Store) {
        let path = format!("rules.{}.lease", rule.name);
        let shown = match (rule.lease, store) {
            (Some(lease), Store::Redis(redis)) => {
                let lots = quotas(table).filter_map(|text| most_at_a_time(&lease, &text.value, redis.nodes));
                match lots.max() {
                    Some(most) => format!("on, lots of up to {most} for {:?}", lease.get_ttl()),
                    None => "on, but strict: too small".to_owned(),
                }
            }
            _ => "off".to_owned(),
        };
        self.show_choice(path, &shown, table.lease.as_ref().map(|lease| lease.span));
    }
}

/// Those of the rule, and those of its overrides.
fn quotas(table: &RuleTable) -> impl Iterator<Item = &Text> {
    let others = table.overrides.iter().flatten().flat_map(|one| &one.value.quota.0);
    table.quota.0.iter().chain(others).map(|Quota(text)| text)
}

fn most_at_a_time(lease: &Lease, quota: &str, nodes: u32) -> Option<u32> {
    lease.grant(burst(&limit::parse(quota).ok()?)?, nodes)
}

/// How much can pass at once by a limit that can be leased.
fn burst(limit: &Limit) -> Option<u64> {
    match limit {
        Limit::Rate(rate @ (Rate::TokenBucket(_) | Rate::FixedWindow(_))) => {
            let fresh = vec![0; rate.words()];
            Some(rate.peek(fresh.as_slice(), Micros::ZERO, 0).limit())
        }
        _ => None,
    }
}
