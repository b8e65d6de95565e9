//! # The schema
//!
//! Editors complete and check a file as it is typed if they know what may stand in it. The schema is made of the same
//! types that read the file, so it cannot forget a field.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::file::File;

/// The JSON schema of a configuration file, draft 2020-12.
#[must_use]
pub fn schema() -> Value {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<File>();
    let mut schema = schema.to_value();
    without_null(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".into(), "Tidegate".into());
    }
    schema
}

/// A field that may be left out may not be empty: who writes `match:` and nothing after it has forgotten something.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(without_null),
        Value::Object(object) => {
            drop_null_types(object);
            drop_null_choice(object);
            object.values_mut().for_each(without_null);
        }
        _ => {}
    }
}

fn drop_null_types(object: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = object.get_mut("type") else { return };
    types.retain(|one| one != "null");
    if let [only] = types.as_slice() {
        let only = only.clone();
        object.insert("type".into(), only);
    }
}

fn drop_null_choice(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get_mut("anyOf") else { return };
    choices.retain(|choice| choice.get("type").is_none_or(|one| one != "null"));
    let [Value::Object(only)] = choices.as_mut_slice() else { return };
    let only = std::mem::take(only);
    object.remove("anyOf");
    for (name, value) in only {
        object.entry(name).or_insert(value);
    }
}
