//! Compiles what the lab preloads into User-Mode Linux, for the program to contain it.

use std::{env, path::PathBuf, process::Command};

const SOURCE: &str = "uml/xstate.c";
const OPTIONS: [&str; 9] = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-s", "-o"];

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR")).join("xstate.so");
    match Command::new(&compiler).args(OPTIONS).arg(out).arg(SOURCE).status() {
        Ok(status) => assert!(status.success(), "{compiler} {SOURCE}: {status}"),
        Err(error) => panic!("{compiler}, which compiles {SOURCE}: {error}"),
    }
}
