//! # A service that is put to the test
//!
//! Its clients set the time and the rules. So nobody from elsewhere may be one of them, and what they set must not
//! reach counts that others live by.

use super::fault::Fault;
use super::flags::Given;
use super::show::Origin;
use super::{Listener, Protocol, Reading, Store};

const FLAG: &str = "--conformance";

impl Reading<'_> {
    pub(super) fn conformance(&mut self, listeners: &[Listener], store: &Store, given: &Given) {
        if !given.conformance {
            return self.show("conformance", "off", Origin::Default);
        }
        self.show("conformance", "on", Origin::Flag(FLAG.to_owned()));
        for open in listeners.iter().filter(|one| one.protocol == Protocol::Resp && !one.address.is_local()) {
            let what = format!(
                "with {FLAG} clients set the time and the rules, and {} is open to others",
                open.address
            );
            let help =
                "listen on this machine only: `--resp 127.0.0.1:6380`, or `--resp unix:/run/tidegate.sock`";
            self.fault(Fault::error("conformance", what).help(help));
        }
        if let Store::Redis(_) = store {
            let what = format!(
                "with {FLAG} counts are in memory: those in a Redis go by its clock, and are others' too"
            );
            self.fault(Fault::error("conformance", what).help("use `store: memory`, and no `--redis`"));
        }
    }
}
