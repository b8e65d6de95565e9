//! # Whose limit it is

use super::{MOST_PARTS, too_many};
use crate::config::Reading;
use crate::config::decode::{OneOrMany, Text};
use crate::config::fault::Fault;
use crate::config::file::{AddressTable, KeyText, MissingWord, RuleTable};
use crate::config::source::{At, Span};
use crate::rules::{Condition, KeyPart, Missing, Test};

/// Half an IPv6 address: the other half is the subscriber's own.
const V6: u8 = 64;

impl Reading<'_> {
    pub(super) fn key(&mut self, key: Option<&At<OneOrMany<KeyText>>>) -> Vec<KeyPart> {
        let parts = key.map_or(&[][..], |key| &key.value.0);
        if let Some(key) = key.filter(|_| parts.len() > MOST_PARTS) {
            self.fault(too_many(parts.len(), "parts in a key", key.span));
            return Vec::new();
        }
        let mut seen: Vec<(&str, Span)> = Vec::new();
        for text in parts.iter().map(KeyText::text) {
            if let Some((_, first)) = seen.iter().find(|(name, _)| *name == text.value) {
                let message = format!("`{}` is twice in the key", text.value);
                self.fault(
                    Fault::error("twice", message).at(text.span).label("again").beside(*first, "first here"),
                );
            }
            if text.value.is_empty() {
                self.fault(
                    Fault::error("name", "a descriptor has a name").at(text.span).label("expected a name"),
                );
            }
            seen.push((&text.value, text.span));
        }
        parts.iter().map(|part| self.key_part(part)).collect()
    }

    fn key_part(&mut self, part: &KeyText) -> KeyPart {
        match part {
            KeyText::Name(name) => KeyPart::Value(name.value.as_str().into()),
            KeyText::Address(table) => {
                let AddressTable { address, v4, v6 } = &table.value;
                let (v4, v6) = (self.bits(v4.as_ref(), 32, 32), self.bits(v6.as_ref(), 128, V6));
                KeyPart::Network { name: address.value.as_str().into(), v4, v6 }
            }
        }
    }

    fn bits(&mut self, bits: Option<&At<u8>>, most: u8, otherwise: u8) -> u8 {
        let Some(At { value, span }) = bits else { return otherwise };
        if *value == 0 || *value > most {
            self.fault(
                Fault::error("value", format!("{value} bits of an address that has {most}"))
                    .at(*span)
                    .label(format!("expected 1 to {most}")),
            );
        }
        *value
    }

    pub(super) fn missing(
        &mut self,
        table: &RuleTable,
        key: &[KeyPart],
        conditions: &[Condition],
    ) -> Missing {
        let open = key.iter().find(|part| !is_ensured(part, conditions)).map(KeyPart::name);
        match (table.missing, open) {
            (Some(said), _) if key.is_empty() => self.fault(
                Fault::error("missing", "nothing can be missing from a rule without a key")
                    .at(said.span)
                    .label("expected `key` beside this"),
            ),
            (None, Some(name)) => self.missing_unsaid(name, table.key.as_ref().map(|key| key.span)),
            _ => {}
        }
        table.missing.map_or(Missing::default(), |word| word.value.into())
    }

    fn missing_unsaid(&mut self, name: &str, key: Option<Span>) {
        let fault = Fault::warning("missing-unsaid", format!("requests without `{name}` will share one key"))
            .label(format!("`{name}` may be missing"))
            .help("say `missing: shared` if that is right, `skip` not to limit them here, or `reject`");
        self.fault(match key {
            Some(key) => fault.at(key),
            None => fault,
        });
    }
}

/// Whether requests that meet the conditions surely have this part of the key.
fn is_ensured(part: &KeyPart, conditions: &[Condition]) -> bool {
    conditions.iter().filter(|condition| *condition.name == *part.name()).any(|condition| match part {
        KeyPart::Value(_) => condition.needs_presence(),
        KeyPart::Network { .. } => matches!(condition.test, Test::In(_)),
    })
}

impl KeyText {
    fn text(&self) -> &Text {
        match self {
            KeyText::Name(text) => text,
            KeyText::Address(table) => &table.value.address,
        }
    }
}

impl From<MissingWord> for Missing {
    fn from(word: MissingWord) -> Self {
        match word {
            MissingWord::Shared => Missing::Shared,
            MissingWord::Skip => Missing::Skip,
            MissingWord::Reject => Missing::Reject,
        }
    }
}
