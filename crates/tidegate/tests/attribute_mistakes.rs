//! Mistakes in an attribute that do not compile, and the compiler's advice.

#![cfg(all(feature = "macros", feature = "tokio"))]

mod mistakes;

#[test]
fn mistakes_fail_to_compile_with_the_expected_message() {
    mistakes::compare("ui");
}

#[test]
fn every_mistake_has_an_expected_message() {
    mistakes::assert_expected_files_exist("ui");
}
