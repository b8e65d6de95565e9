//! Invalid uses of the attribute, and their compile errors.

#![cfg(all(feature = "macros", feature = "tokio"))]

mod compile_errors;

#[test]
fn invalid_code_fails_with_the_expected_message() {
    compile_errors::compare("ui_attribute");
}

#[test]
fn every_source_file_has_an_expected_message() {
    compile_errors::assert_expected_files_exist("ui_attribute");
}
