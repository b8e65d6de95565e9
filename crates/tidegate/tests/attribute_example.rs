//! The example tells what it says.

#![cfg(feature = "macros")]

#[path = "../examples/attribute.rs"]
#[expect(dead_code, reason = "its main is called when it is run")]
mod example;

#[test]
fn the_example_tells_what_came_of_each_call() {
    let told = [
        "text 555-1: sent",
        "text 555-1: sent",
        "text 555-1: not sent, for 2/day",
        "text 555-2: sent",
        "text 555-3: sent",
        "text 555-4: not sent, for 4/day",
        "weather: Oslo as measured",
        "weather: Oslo as usual",
        "weather: Rome as measured",
        "print: Ok(1)",
        "print while mending: print is limited: all 1 permits are in use; retry when one is free",
    ];
    assert_eq!(example::told(), told);
}
