//! # Messages, as plain Rust
//!
//! A struct for each message, whose fields are read and written by the traits of `grpc/wire.rs`. There are few
//! messages, and what they hold is simple, so there is no crate that the service would need for them. Members of a `oneof` are
//! fields that may be there; entries of a map are messages of their own, as they are on the wire.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// A message, with its name in Rust.
type Named<'a> = BTreeMap<String, (String, &'a DescriptorProto)>;

pub fn code(set: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let (mut all, mut enums) = (Named::new(), Vec::new());
    for file in &set.file {
        let package = format!(".{}", file.package());
        file.message_type.iter().for_each(|message| collect(&package, "", message, &mut all, &mut enums));
        enums.extend(file.enum_type.iter().map(|one| (one.name().to_owned(), one)));
    }
    let wanted = reachable(set, &all);
    let mut text = String::from("use super::wire::{Field, Malformed, Message, Value as Wire};\n");
    let mut seen = BTreeSet::new();
    for (name, (rust, message)) in all.iter().filter(|(name, _)| wanted.contains(*name)) {
        if !seen.insert(rust) {
            return Err(format!("two messages would be called {rust}; {name} is the second").into());
        }
        struct_of(rust, message, &all, &mut text)?;
    }
    enums.sort_by(|one, other| one.0.cmp(&other.0));
    for (name, one) in enums.iter().filter(|(name, _)| name != "NullValue") {
        constants(name, one, &mut text);
    }
    Ok(text)
}

fn collect<'a>(
    path: &str,
    rust: &str,
    message: &'a DescriptorProto,
    all: &mut Named<'a>,
    enums: &mut Vec<(String, &'a EnumDescriptorProto)>,
) {
    let (path, rust) = (format!("{path}.{}", message.name()), format!("{rust}{}", message.name()));
    message.nested_type.iter().for_each(|inner| collect(&path, &rust, inner, all, enums));
    enums.extend(message.enum_type.iter().map(|one| (format!("{rust}{}", one.name()), one)));
    all.insert(path, (rust, message));
}

/// What the methods take and give, and what that is made of.
fn reachable(set: &FileDescriptorSet, all: &Named<'_>) -> BTreeSet<String> {
    let methods = set.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
    let mut next: Vec<String> = methods
        .flat_map(|method| [method.input_type().to_owned(), method.output_type().to_owned()])
        .collect();
    let mut found = BTreeSet::new();
    while let Some(name) = next.pop() {
        let Some((_, message)) = all.get(&name) else { continue };
        if found.insert(name) {
            next.extend(message.field.iter().map(|field| field.type_name().to_owned()));
        }
    }
    found
}

fn struct_of(
    rust: &str,
    message: &DescriptorProto,
    all: &Named<'_>,
    text: &mut String,
) -> Result<(), Box<dyn Error>> {
    let _ = writeln!(text, "\n#[derive(Clone, Debug, Default, PartialEq)]\npub(crate) struct {rust} {{");
    for field in &message.field {
        let _ = writeln!(text, "    pub(crate) {}: {},", field.name(), type_of(field, all)?);
    }
    let _ = writeln!(text, "}}\n\nimpl Message for {rust} {{");
    let _ =
        writeln!(text, "    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {{");
    let _ = writeln!(text, "        match number {{");
    for field in &message.field {
        let _ = writeln!(text, "            {} => self.{}.read(value),", field.number(), field.name());
    }
    let _ = writeln!(text, "            _ => Ok(()),\n        }}\n    }}\n");
    let _ = writeln!(text, "    fn write(&self, into: &mut Vec<u8>) {{");
    for field in &message.field {
        let _ = writeln!(text, "        self.{}.write({}, into);", field.name(), field.number());
    }
    let _ = writeln!(text, "    }}\n}}");
    Ok(())
}

fn type_of(field: &FieldDescriptorProto, all: &Named<'_>) -> Result<String, Box<dyn Error>> {
    let one = match field.r#type() {
        Type::String => "String".to_owned(),
        Type::Bytes => "Vec<u8>".to_owned(),
        Type::Uint32 => "u32".to_owned(),
        Type::Uint64 => "u64".to_owned(),
        Type::Int32 | Type::Enum => "i32".to_owned(),
        Type::Int64 => "i64".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Double => "f64".to_owned(),
        Type::Message => {
            let (rust, _) = all.get(field.type_name()).ok_or_else(|| format!("no {}", field.type_name()))?;
            rust.clone()
        }
        other => return Err(format!("{}: {other:?} is not known yet", field.name()).into()),
    };
    Ok(match field.label() {
        Label::Repeated => format!("Vec<{one}>"),
        _ if field.r#type() == Type::Message || field.oneof_index.is_some() => format!("Option<{one}>"),
        _ => one,
    })
}

fn constants(rust: &str, one: &EnumDescriptorProto, text: &mut String) {
    let _ = writeln!(
        text,
        "\n/// What a field of this kind may be.\npub(crate) struct {rust};\n\nimpl {rust} {{"
    );
    for value in &one.value {
        let _ = writeln!(text, "    pub(crate) const {}: i32 = {};", value.name(), value.number());
    }
    let _ = writeln!(text, "}}");
}
