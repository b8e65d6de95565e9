//! Writes the code that is generated of the service's `.proto` files, so that whoever builds the service needs neither
//! protoc nor this. It is committed; `scripts/check` looks whether it is up to date.
//!
//! ```text
//!   cargo run --manifest-path tools/protos/Cargo.toml              writes it
//!   cargo run --manifest-path tools/protos/Cargo.toml -- --check   says what differs
//! ```
//!
//! Beside the messages it writes what reflection tells: each file as its descriptor, and the names that are in it.

mod messages;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto};

/// What is served. What they import comes along.
const SERVED: [&str; 3] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
];
const BY_WHOM: &str = "// @generated of the files in `proto` by tools/protos: change those, and run it.\n";

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn main() -> ExitCode {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/tidegate-server");
    let is_check = std::env::args().nth(1).is_some_and(|argument| argument == "--check");
    let done = generated(&server.join("proto")).and_then(|files| {
        let folder = server.join("src/grpc/generated");
        if is_check { differing(&folder, &files) } else { write(&folder, &files).map(|()| Vec::new()) }
    });
    match done {
        Ok(differing) if differing.is_empty() => ExitCode::SUCCESS,
        Ok(differing) => {
            let names: Vec<_> = differing.iter().map(|path| path.display().to_string()).collect();
            let remedy = "run `cargo run --manifest-path tools/protos/Cargo.toml`";
            eprintln!("not what is generated: {}; {remedy}", names.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Every file that is generated, with its name.
fn generated(protos: &Path) -> Result<Files, Box<dyn Error>> {
    let set = protox::compile(SERVED, [protos])?;
    let mut files = Files::new();
    files.insert("messages.rs".into(), format!("{BY_WHOM}\n{}", messages::code(&set)?).into_bytes());
    let mut table = format!(
        "{BY_WHOM}\n/// Each file: its name, the names that are in it, and its descriptor.\n\
         pub(crate) const FILES: &[(&str, &[&str], &[u8])] = &[\n"
    );
    for file in &set.file {
        let name = file.name().replace(['/', '.'], "_");
        let _ = writeln!(table, "    (\n        {:?},\n        &[", file.name());
        for symbol in symbols(file) {
            let _ = writeln!(table, "            {symbol:?},");
        }
        let _ = writeln!(table, "        ],\n        include_bytes!(\"{name}.bin\"),\n    ),");
        files.insert(format!("{name}.bin").into(), plain(file).encode_to_vec());
    }
    table.push_str("];\n");
    files.insert("files.rs".into(), table.into_bytes());
    Ok(files)
}

/// Without where everything stands in the text: nobody asks for that.
fn plain(file: &FileDescriptorProto) -> FileDescriptorProto {
    FileDescriptorProto { source_code_info: None, ..file.clone() }
}

/// The whole names of all messages, enumerations, services and their methods.
fn symbols(file: &FileDescriptorProto) -> Vec<String> {
    let mut all = Vec::new();
    for message in &file.message_type {
        nested(file.package(), message, &mut all);
    }
    all.extend(file.enum_type.iter().map(|it| format!("{}.{}", file.package(), it.name())));
    for service in &file.service {
        let name = format!("{}.{}", file.package(), service.name());
        let methods = service.method.iter().map(|method| format!("{name}.{}", method.name()));
        all.extend(methods);
        all.push(name);
    }
    all
}

fn nested(within: &str, message: &DescriptorProto, all: &mut Vec<String>) {
    let name = format!("{within}.{}", message.name());
    for inner in &message.nested_type {
        nested(&name, inner, all);
    }
    all.extend(message.enum_type.iter().map(|it| format!("{name}.{}", it.name())));
    all.push(name);
}

fn write(folder: &Path, files: &Files) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// What is not as it is generated, and what is there beside it.
fn differing(folder: &Path, files: &Files) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = PathBuf::from(entry?.file_name());
        names.extend((!files.contains_key(&name)).then_some(name));
    }
    let differs =
        |(name, bytes): &(&PathBuf, &Vec<u8>)| fs::read(folder.join(name)).ok().as_ref() != Some(*bytes);
    names.extend(files.iter().filter(differs).map(|(name, _)| name.clone()));
    Ok(names)
}
