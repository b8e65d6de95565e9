//! # Requesting and returning grants
//!
//! Each request runs in a task of its own, so that a caller that stops waiting for a grant does not cancel it for the
//! other waiters.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate_core::{Decision, Outcome};
use tokio::sync::Notify;

use super::account::{GrantRequest, LeaseTerms, Unspent};
use super::accounts::{Accounts, Swept};
use super::clock::BootClock;
use super::grant::{Grant, GrantReply};
use super::striped::StripedCounter;
use crate::error::Error;
use crate::gate::RedisGate;
use crate::wire::{CostExtra, Operation, Reply, RuleArgs};

/// The state that all clones of a leased gate share.
#[derive(Debug)]
pub(crate) struct Refill {
    pub(crate) gate: RedisGate,
    pub(crate) lease_terms: Box<[Option<LeaseTerms>]>,
    pub(crate) accounts: Accounts,
    pub(crate) clock: BootClock,
    /// Whether no rule is leased.
    pub(crate) has_no_leases: bool,
    /// The number of requests for grants in flight.
    pub(crate) fetches_in_flight: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseCounters {
    pub(crate) spent: StripedCounter,
    pub(crate) refused: StripedCounter,
    pub(crate) commands: AtomicU64,
    pub(crate) granted: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) stranded: AtomicU64,
}

/// After Redis granted nothing, a node tries again after at most `ttl / RETRIES_PER_TTL`.
const RETRIES_PER_TTL: u64 = 8;

impl Refill {
    /// Requests a grant on behalf of a caller that needs `cost`, and notifies waiters at the end.
    pub(crate) fn start_fetch(self: &Arc<Self>, rule: usize, key: &[u8], cost: u32) {
        let (refill, key): (_, Box<[u8]>) = (self.clone(), key.into());
        let runtime = self.gate.shared.runtime.clone();
        self.fetches_in_flight.fetch_add(1, Ordering::Relaxed);
        runtime.spawn(async move {
            refill.fetch(rule, &key, cost).await;
            refill.fetches_in_flight.fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn fetch(&self, rule: usize, key: &[u8], cost: u32) {
        let Some(terms) = self.lease_terms[rule] else { return };
        let now = self.clock.now();
        let Some(request) = self
            .accounts
            .with_existing(self.accounts.id(rule, key), |account| account.request(cost, &terms, now))
        else {
            return;
        };
        let id: [u8; 16] = self.gate.shared.ids.next().try_into().unwrap_or_default();
        let reply = self.send(rule, key, &terms, &request, id).await;
        add(&self.counters().commands, 1);
        let notify = match &reply {
            Ok(reply) => {
                self.received(rule, key, grant_from_reply(reply, &terms, request.ttl, id), &request, reply)
                    .await
            }
            Err(error) => {
                if !error.is_breaker_open() {
                    add(&self.counters().stranded, request.want);
                }
                self.accounts.with_existing(self.accounts.id(rule, key), |account| {
                    account.failed();
                    account.notify.clone()
                })
            }
        };
        if let Some(notify) = notify {
            notify.notify_waiters();
        }
    }

    /// Adds a grant to the account that requested it.
    ///
    /// If the account was closed meanwhile, the grant goes back to Redis immediately.
    async fn received(
        &self,
        rule: usize,
        key: &[u8],
        grant: GrantReply,
        request: &GrantRequest,
        reply: &Reply,
    ) -> Option<Arc<Notify>> {
        add(&self.counters().granted, grant.amount + grant.claimed);
        let (now, full_in) = (self.clock.now(), reply.decisions[0].reset_after().as_micros());
        let notify = self.accounts.with_existing(self.accounts.id(rule, key), |account| {
            account.granted(grant, request, full_in, now);
            account.notify.clone()
        });
        if notify.is_none() {
            let claimed = request.claim.and_then(|claim| grant.claimed_grant(claim.id, request.sent));
            let grants = grant.grant(request.sent).into_iter().chain(claimed).collect();
            self.return_unspent(
                rule,
                key,
                Unspent { grants, reservation: grant.reservation(request.sent, now) },
            )
            .await;
        }
        notify
    }

    pub(crate) fn counters(&self) -> &LeaseCounters {
        &self.gate.shared.monitor.counters.leases
    }

    async fn send(
        &self,
        rule: usize,
        key: &[u8],
        terms: &LeaseTerms,
        request: &GrantRequest,
        id: [u8; 16],
    ) -> Result<Reply, Error> {
        let (shared, cost) = (&self.gate.shared, request.want);
        if terms.is_window {
            let rules = [self.rule_args(rule, key, cost, CostExtra::None)];
            return shared.call_rules(Operation::Take, &rules, None, shared.deadline).await;
        }
        let terms = CostExtra::Lease { stock: terms.stock, ttl: request.ttl, reserve: cost };
        let rules = [self.rule_args(rule, key, cost, terms)];
        let claim = request.claim.map(|claim| (claim.id, claim.amount));
        let older = request.older.iter().chain(&claim);
        let older = older.flat_map(|(id, left)| [&id[..], &left.to_be_bytes()].concat());
        let ids: Vec<u8> = id.into_iter().chain(older).collect();
        shared.call_rules(Operation::Lease, &rules, Some(&ids), shared.deadline).await
    }

    fn rule_args(&self, rule: usize, key: &[u8], cost: u32, extra: CostExtra) -> RuleArgs<'_> {
        let spec = &self.gate.shared.rules[rule];
        RuleArgs { key: self.gate.shared.keys.name(&spec.name, key), cost, extra, rule: &spec.encoded }
    }

    /// Returns grants that are not spent any more. Tokens in lost commands expire.
    pub(crate) async fn return_swept(&self, swept: Swept) {
        self.counters().expired.fetch_add(swept.expired, Ordering::Relaxed);
        for (rule, key, unspent) in swept.unspent {
            self.return_unspent(rule, &key, unspent).await;
        }
    }

    async fn return_unspent(&self, rule: usize, key: &[u8], unspent: Unspent) {
        for grant in unspent.grants {
            self.return_grant(rule, key, &grant).await;
        }
        if let Some(reservation) = unspent.reservation {
            let rules = [self.rule_args(rule, key, reservation.amount, CostExtra::None)];
            let shared = &self.gate.shared;
            // Without a reply, the reservation expires.
            let _ =
                shared.call_rules(Operation::Return, &rules, Some(&reservation.id), shared.deadline).await;
            add(&self.counters().commands, 1);
        }
    }

    async fn return_grant(&self, rule: usize, key: &[u8], grant: &Grant) {
        let (shared, left) = (&self.gate.shared, grant.left());
        let is_window = self.lease_terms[rule].is_some_and(|terms| terms.is_window);
        let reply = if is_window {
            let rules = [self.rule_args(rule, key, left, CostExtra::ChargeEnds(grant.ends))];
            shared.call_rules(Operation::Rollback, &rules, None, shared.deadline).await
        } else {
            let rules = [self.rule_args(rule, key, left, CostExtra::None)];
            shared.call_rules(Operation::Return, &rules, Some(&grant.id), shared.deadline).await
        };
        add(&self.counters().commands, 1);
        let count = if reply.is_ok() { &self.counters().returned } else { &self.counters().stranded };
        add(count, left);
    }

    /// Returns idle tokens periodically, until the gate is dropped.
    pub(crate) async fn sweep(refill: Weak<Refill>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some(refill) = refill.upgrade() else { return };
            let swept = refill.accounts.sweep_idle(&refill.lease_terms, refill.clock.now());
            refill.return_swept(swept).await;
        }
    }
}

pub(crate) fn add(count: &AtomicU64, amount: u32) {
    count.fetch_add(amount.into(), Ordering::Relaxed);
}

/// Extracts the grant from a reply.
pub(crate) fn grant_from_reply(reply: &Reply, terms: &LeaseTerms, ttl: u64, id: [u8; 16]) -> GrantReply {
    let (decision, amount) = (reply.decisions[0], reply.taken.unwrap_or(0));
    let reset = decision.reset_after().as_micros();
    let ends = decision.at().plus(reset);
    if terms.is_window {
        let wait = if amount == 0 { reset } else { 0 };
        return GrantReply { id, amount, wait, ttl: terms.ttl.min(reset), ends, ..GrantReply::default() };
    }
    let (reserved, claimed) = (reply.reserved, reply.claimed);
    let is_out_of_stock = amount + reserved + claimed == 0 && decision.remaining() > 0;
    // Another node may return tokens earlier.
    let max_wait = match reserved {
        0 if is_out_of_stock => terms.ttl / (4 * RETRIES_PER_TTL),
        0 => terms.ttl / RETRIES_PER_TTL,
        _ => u64::MAX,
    };
    GrantReply {
        id,
        amount,
        reserved,
        claimed,
        is_out_of_stock,
        wait: wait_micros(&decision).min(max_wait),
        ttl,
        ends,
    }
}

fn wait_micros(decision: &Decision) -> u64 {
    match decision.outcome {
        Outcome::AllowedAfter(wait) | Outcome::RetryAfter(wait) => wait.as_micros(),
        _ => 0,
    }
}
