//! Checks the JSON Schema with a validator that is not ours, Python's jsonschema: it accepts what the parser accepts, as far as a
//! schema can tell, and it knows the same keys.

use super::{EXAMPLE, problems};
use crate::parse::{FILE_KEYS, LINK_KEYS, OBSERVE_KEYS, SOCKETS_KEYS, TENANT_KEYS, UPLINK_KEYS, VIF_KEYS};
use crate::schema;
use serde_json::{Value, json};
use std::env;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Reads a schema and texts of policies from standard input; prints for each text whether it is valid, or why not.
const VALIDATE: &str = "
import json, sys, tomllib, jsonschema
given = json.load(sys.stdin)
jsonschema.Draft202012Validator.check_schema(given['schema'])
validator = jsonschema.Draft202012Validator(given['schema'])
print(json.dumps([[error.message for error in validator.iter_errors(tomllib.loads(text))] for text in given['texts']]))
";

/// What the schema says about each text: its errors. None if this machine has no validator, which `FAIRLANE_GUESTS=required` does
/// not allow.
fn judged(texts: &[String]) -> Option<Vec<Vec<String>>> {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-I", "-c", VALIDATE]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = python.spawn().and_then(|mut python| {
        let input = json!({ "schema": schema(), "texts": texts }).to_string();
        // A validator that is not there closes its input, and then says so.
        let _ = python.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
        python.wait_with_output()
    });
    let errors = match output {
        Ok(output) if output.status.success() => return serde_json::from_slice(&output.stdout).expect("JSON"),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let is_required = env::var_os("FAIRLANE_GUESTS").is_some_and(|value| value == "required");
    assert!(errors.contains("No module named") && !is_required, "Python's jsonschema (python3-jsonschema): {errors}");
    eprintln!("SKIPPED: python3-jsonschema is not installed");
    None
}

/// The code blocks of a page that are policies, or the vifs and tenants of one with a link `lan`.
fn policies_of(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let blocks = blocks.map(|block| block.lines().map(|line| format!("{}\n", line.trim_start())).collect::<String>());
    let with_link = blocks.map(|text| match problems(&text)[..] {
        [] => text,
        _ => format!("[[link]]\nname = \"lan\"\n{text}"),
    });
    with_link.filter(|text| problems(text).is_empty()).collect()
}

/// Every file below a directory with this extension.
fn files_below(directory: &Path, extension: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|given| given == extension) {
            found.push(std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_policy_of_the_documents_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![std::fs::read_to_string(root.join("README.md")).unwrap()];
    files_below(&root.join("docs"), "md", &mut pages);
    let mut texts: Vec<String> = pages.iter().flat_map(|page| policies_of(page)).collect();
    assert!(texts.len() >= 5, "{texts:#?}");
    for directory in ["examples", "deploy"] {
        files_below(&root.join(directory), "toml", &mut texts);
    }
    let Some(found) = judged(&texts) else { return };
    for (text, errors) in texts.iter().zip(found) {
        assert_eq!(errors, [""; 0], "{text}");
    }
}

#[test]
fn wrong_policies_are_not_valid() {
    let link = "[[link]]\nname = \"lan\"\n";
    let wrong = [
        "",
        "[[link]]\n",
        "[[link]]\nname = \"a b\"\n",
        &format!("{link}rat = \"1Gbit/s\"\n"),
        &format!("{link}rate = \"1Gbit\"\n"),
        &format!("{link}scheduler = \"fiar\"\n"),
        &format!("{link}uplink = {{ tap = \"an-interface-too-long\" }}\n"),
        &format!("{link}uplink = {{ tpa = \"fl0\" }}\n"),
        &format!("{link}[[vif]]\nname = \"web\"\nsocket = \"/s\"\nweight = 0\n"),
        &format!("{link}[[vif]]\nname = \"web\"\nsocket = \"/s\"\nrx_max_frames = \"many\"\n"),
        &format!("{link}[[vif]]\nname = \"web\"\nsocket = \"/s\"\nqueues = 17\n"),
        &format!("{link}[[tenant]]\nname = \"red\"\nsocket = \"/s\"\n"),
        &format!("nonsense = 1\n{link}"),
    ]
    .map(str::to_owned);
    assert!(wrong.iter().all(|text| !problems(text).is_empty()));
    let Some(found) = judged(&wrong) else { return };
    for (text, errors) in wrong.iter().zip(found) {
        assert!(!errors.is_empty(), "valid: {text}");
    }
}

#[test]
fn every_key_of_the_parser_is_described() {
    let schema = schema();
    let item = |key: &str| &schema["properties"][key]["items"];
    let uplink = &item("link")["properties"]["uplink"];
    let tables = [
        (&schema, FILE_KEYS),
        (&schema["properties"]["observe"], OBSERVE_KEYS),
        (&schema["properties"]["sockets"], SOCKETS_KEYS),
        (item("link"), LINK_KEYS),
        (uplink, UPLINK_KEYS),
        (item("tenant"), TENANT_KEYS),
        (item("vif"), VIF_KEYS),
    ];
    for (table, keys) in tables {
        for key in keys {
            let value = &table["properties"][key];
            assert!(value.as_object().is_some_and(|value| value.len() > 1), "{key} accepts anything: {value}");
            let is_table = ["observe", "sockets", "link", "tenant", "vif"].contains(key) && keys == FILE_KEYS;
            assert!(is_table || value["description"].is_string(), "{key} has no description");
        }
    }
    assert_eq!(item("link")["properties"]["delay"]["deprecated"], Value::Bool(true), "an old name is still read");
    assert!(EXAMPLE.starts_with("#:schema "), "editors complete the example");
}
