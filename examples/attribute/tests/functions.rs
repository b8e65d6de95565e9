//! Calls the functions directly.

use example_attribute::{Printer, text, weather};

#[test]
fn numbers_have_limits_of_their_own_and_share_one() {
    let results =
        ["555-1", "555-1", "555-1", "555-2", "555-3", "555-4"].map(|number| match text(number, "hello") {
            Ok(_) => "sent".to_owned(),
            Err(denied) => format!("not sent, for {}", denied.limit().expect("a limit of its own")),
        });
    assert_eq!(results, ["sent", "sent", "not sent, for 2/day", "sent", "sent", "not sent, for 4/day"]);
}

#[test]
fn the_measurement_runs_once_for_each_city() {
    let results = ["Oslo", "Oslo", "Rome"].map(weather);
    assert_eq!(results, ["Oslo as measured", "Oslo as usual", "Rome as measured"]);
}

#[test]
fn a_printer_prints_nothing_while_it_is_repaired() {
    let printer = Printer::default();
    assert_eq!(printer.print(1), Ok(1));
    let refused = printer.repair().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "print is limited: all 1 permits are in use; retry when one is free");
    assert_eq!(printer.print(3), Ok(3));
}
