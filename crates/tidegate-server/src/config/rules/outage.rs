//! # What a rule does in an outage of the store
//!
//! `local` sounds like a limit, and may be next to none: a share of a small limit among many nodes starts empty and comes
//! in slowly, and a share below one is closed. So `show` tells it in words, and `check` warns of shares that are slow.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Algorithm, Micros, Rule as Rate};

use crate::config::decode::Text;
use crate::config::fault::Fault;
use crate::config::file::{Quota, RuleTable};
use crate::config::limit;
use crate::config::{Reading, Store};
use crate::rules::{Limit, OnOutage, Rule};

/// What becomes of requests under one quota while the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InOutage {
    Open,
    Closed,
    /// The share of each node is less than one.
    NoShare {
        limit: u64,
        nodes: u32,
    },
    /// Concurrency is counted in the store alone.
    Concurrency,
    Share {
        pace: Pace,
        burst: u64,
        nodes: u32,
    },
}

/// So many in so many microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    count: u64,
    micros: u64,
}

const MINUTE: u64 = 60_000_000;
const UNITS: [(&str, u64); 4] =
    [("second", 1_000_000), ("minute", MINUTE), ("hour", 60 * MINUTE), ("day", 24 * 60 * MINUTE)];

impl Reading<'_> {
    /// Shows what each quota of a rule does in an outage, and warns of shares that are slow.
    pub(super) fn outage(&mut self, table: &RuleTable, rule: &Rule, store: &Store) {
        let Store::Redis(redis) = store else { return };
        let own = table.quota.0.iter().map(|quota| (String::new(), quota));
        let overrides = table.overrides.iter().flatten().zip(&rule.overrides);
        let others = overrides.flat_map(|(one, meant)| {
            one.value.quota.0.iter().map(|quota| (format!(".overrides[{}]", meant.label), quota))
        });
        for (of, Quota(text)) in own.chain(others) {
            let Ok(limit) = limit::parse(&text.value) else { continue };
            let does = InOutage::of(rule.when_lost, &limit, redis.nodes);
            self.show_text(format!("rules.{}{of}.outage", rule.name), does.to_string(), text);
            if let InOutage::Share { pace, .. } = does
                && pace.is_slow()
            {
                self.slow_share(text, pace);
            }
        }
    }

    fn slow_share(&mut self, quota: &Text, pace: Pace) {
        let message =
            format!("in an outage `{}` lets less than one a minute pass on each node", quota.shown().trim());
        self.fault(
            Fault::warning("slow-share", message)
                .at(quota.span)
                .label(format!("this node's share is {pace}"))
                .help("write `when_lost: open` or `when_lost: closed` if one of these is meant"),
        );
    }
}

impl InOutage {
    fn of(when_lost: OnOutage, limit: &Limit, nodes: u32) -> Self {
        match (when_lost, limit) {
            (OnOutage::Open, _) => InOutage::Open,
            (OnOutage::Closed, _) => InOutage::Closed,
            (OnOutage::Local, Limit::AtOnce { .. }) => InOutage::Concurrency,
            (OnOutage::Local, Limit::Rate(rate)) => {
                let share = rate.share(nodes).and_then(|share| Some((Pace::of(&share)?, burst(&share))));
                match share {
                    Some((pace, burst)) => InOutage::Share { pace, burst, nodes },
                    None => InOutage::NoShare { limit: burst(rate), nodes },
                }
            }
        }
    }
}

/// How much passes at once by a limit that nothing was taken of.
fn burst(rate: &Rate) -> u64 {
    rate.peek(vec![0; rate.words()].as_slice(), Micros::ZERO, 0).limit()
}

impl Pace {
    fn of(rate: &Rate) -> Option<Self> {
        let setting = rate.encode();
        let (count, micros) = match (setting.letter(), setting.numbers()) {
            (b'b' | b'q', [p, q, ..]) => (*q, *p),
            (b'g', [thousandths, ..]) => (*thousandths, 1_000 * 1_000_000),
            (b's' | b'w' | b'h' | b'l' | b'c', [limit, period, ..]) => (*limit, *period),
            _ => return None,
        };
        Some(Pace { count, micros }).filter(|pace| pace.count > 0 && pace.micros > 0)
    }

    /// Whether less than one comes in each minute.
    fn is_slow(&self) -> bool {
        u128::from(self.micros) > u128::from(self.count) * u128::from(MINUTE)
    }

    /// The smallest unit in which it is a whole number, and that number.
    fn whole(&self) -> Option<(u64, &'static str)> {
        let whole = |(name, unit): (&'static str, u64)| {
            let (many, micros) = (u128::from(self.count) * u128::from(unit), u128::from(self.micros));
            let is_whole = many.is_multiple_of(micros);
            u64::try_from(many / micros).ok().filter(|many| is_whole && *many > 0).map(|many| (many, name))
        };
        UNITS.into_iter().find_map(whole)
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.whole() {
            Some((many, unit)) => write!(f, "{many} per {unit}"),
            None => write!(f, "one every {:?}", Duration::from_micros(self.micros / self.count)),
        }
    }
}

impl fmt::Display for InOutage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InOutage::Open => f.write_str("open: every request passes, uncounted"),
            InOutage::Closed => f.write_str("closed: every request is refused"),
            InOutage::NoShare { limit, nodes } => {
                write!(f, "closed, because {limit} ÷ {nodes} nodes is less than one")
            }
            InOutage::Concurrency => f.write_str("closed, because concurrency is counted in Redis alone"),
            InOutage::Share { pace, burst, nodes } => {
                write!(f, "local: {pace}")?;
                if pace.whole().is_none_or(|(many, _)| many != *burst) {
                    write!(f, ", up to {burst} at once,")?;
                }
                match nodes {
                    1 => f.write_str(" on this node, starting empty"),
                    nodes => write!(f, " on each of {nodes} nodes, starting empty"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Format};

    #[test]
    fn show_tells_in_words_what_each_quota_does_in_an_outage() {
        let told = |when_lost, quota: &str, nodes| {
            InOutage::of(when_lost, &limit::parse(quota).expect("a quota"), nodes).to_string()
        };
        let local = OnOutage::Local;
        assert_eq!(told(local, "10_000/day", 2), "local: 5000 per day on each of 2 nodes, starting empty");
        assert_eq!(told(local, "10/s", 1), "local: 10 per second on this node, starting empty");
        assert_eq!(
            told(local, "100/s burst 10", 4),
            "local: 25 per second, up to 2 at once, on each of 4 nodes, starting empty"
        );
        assert_eq!(told(local, "3/min", 5), "closed, because 3 ÷ 5 nodes is less than one");
        let concurrency = "closed, because concurrency is counted in Redis alone";
        assert_eq!(told(local, "20 at once", 1), concurrency);
        assert_eq!(told(OnOutage::Open, "3/min", 5), "open: every request passes, uncounted");
        assert_eq!(told(OnOutage::Closed, "20 at once", 5), "closed: every request is refused");
    }

    #[test]
    fn check_warns_of_a_local_share_slower_than_one_a_minute() {
        let warned = |rule: &str, nodes: u32| {
            let store = format!("store: {{redis: {{url: \"redis://h\", nodes: {nodes}}}}}");
            let file = format!("{store}\nrules: [{{name: a, {rule}}}]\n");
            let loaded = Config::load("x", file.as_bytes(), Format::Yaml, &|_| None);
            let shown = loaded.config.expect("a file").shown;
            let shown = shown.into_iter().filter(|shown| shown.path.ends_with(".outage"));
            let faults: Vec<_> = loaded.faults.iter().map(|fault| fault.code).collect();
            (faults, shown.map(|shown| shown.value).collect::<Vec<_>>())
        };
        let one = |text: &str| vec![text.to_owned()];
        let share = "local: 1 per minute, up to 30 at once, on each of 2 nodes, starting empty";
        assert_eq!(warned("quota: 120/h burst 60", 2), (vec![], one(share)));
        let share = "local: 20 per hour on each of 6 nodes, starting empty";
        assert_eq!(warned("quota: 120/h", 6), (vec!["slow-share"], one(share)));
        assert_eq!(warned("quota: 120/h, when_lost: closed", 6).0, [""; 0]);
        assert_eq!(warned("quota: 5 at once", 6).0, [""; 0]);
    }
}
