//! Invalid HTTP limits, and their compile errors.

mod compile_errors;

#[test]
fn invalid_code_fails_with_the_expected_message() {
    compile_errors::compare("ui_http");
}

#[test]
fn every_source_file_has_an_expected_message() {
    compile_errors::assert_expected_files_exist("ui_http");
}
