//! What comes of each call.

use example_attribute::{Printer, text, weather};

#[test]
fn each_number_has_a_limit_and_all_of_them_have_one() {
    let told =
        ["555-1", "555-1", "555-1", "555-2", "555-3", "555-4"].map(|number| match text(number, "hello") {
            Ok(_) => "sent".to_owned(),
            Err(denied) => format!("not sent, for {}", denied.limit().expect("one of its own")),
        });
    assert_eq!(told, ["sent", "sent", "not sent, for 2/day", "sent", "sent", "not sent, for 4/day"]);
}

#[test]
fn what_is_dear_is_done_once_for_each_city() {
    let told = ["Oslo", "Oslo", "Rome"].map(weather);
    assert_eq!(told, ["Oslo as measured", "Oslo as usual", "Rome as measured"]);
}

#[test]
fn a_printer_prints_nothing_while_it_is_mended() {
    let printer = Printer::default();
    assert_eq!(printer.print(1), Ok(1));
    let refused = printer.mend().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "print is limited: all 1 permits are in use; retry when one is free");
    assert_eq!(printer.print(3), Ok(3));
}
