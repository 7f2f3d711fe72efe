//! Resolves addresses to functions, by a kernel's table (`/proc/kallsyms`) or the hypervisor's (`/proc/xen/xensyms`).
//!
//! The agent reads the tables itself, as they are long and the console is slow.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Bound::{Excluded, Unbounded},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// A function, and the addresses of its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The address of its first instruction.
    pub start: u64,
    /// The address of the next function in the table.
    pub end: u64,
    /// Its name, followed by its module's in parentheses.
    pub name: String,
}

/// The functions that contain the addresses, sorted by address. An address before the table's first function has none.
///
/// # Errors
/// If the file cannot be read or is no symbol table.
pub(crate) fn of(table: &Path, addresses: &[u64]) -> io::Result<Vec<Function>> {
    let text = fs::read_to_string(table)?;
    let functions = functions(&text)?;
    let function = |address: &u64| {
        let (start, name) = functions.range(..=address).next_back()?;
        let end = functions.range((Excluded(start), Unbounded)).next().map_or(u64::MAX, |(end, _)| *end);
        Some((*start, Function { start: *start, end, name: name.clone() }))
    };
    let found: BTreeMap<u64, Function> = addresses.iter().filter_map(function).collect();
    Ok(found.into_values().collect())
}

/// Parses lines of address, type and name; a module's name may follow in brackets. Symbols other than code are left out.
fn functions(text: &str) -> io::Result<BTreeMap<u64, String>> {
    let mut functions = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        let wrong =
            || io::Error::other(format!("line {number}, `{line}`, is not a symbol: its address, type and name"));
        let (address, kind, name) = symbol(line).ok_or_else(wrong)?;
        if ["t", "T", "w", "W"].contains(&kind) {
            // Keeps the first of several names of an address.
            functions.entry(address).or_insert(name);
        }
    }
    Ok(functions)
}

fn symbol(line: &str) -> Option<(u64, &str, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let (kind, name) = (words.next()?, words.next()?);
    let module = words.next().map(|module| module.trim_matches(['[', ']']));
    Some((address, kind, module.map_or(name.to_owned(), |module| format!("{name} ({module})"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "ffffffff81000000 T _stext\nffffffff81000000 T _text\nffffffff81000100 t do_one\n\
                         ffffffff81000180 D data\nffffffffc0001000 t xennet_poll\t[xen_netfront]\n";

    #[test]
    fn an_address_belongs_to_the_function_that_starts_before_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), TABLE).unwrap();
        let addresses =
            [0xffff_ffff_8100_0000, 0xffff_ffff_8100_00ff, 0xffff_ffff_8100_01ff, 0xffff_ffff_c000_1001, 0x40_1000];
        let function = |start, end, name: &str| Function { start, end, name: name.to_owned() };
        let expected = [
            function(0xffff_ffff_8100_0000, 0xffff_ffff_8100_0100, "_stext"),
            function(0xffff_ffff_8100_0100, 0xffff_ffff_c000_1000, "do_one"),
            function(0xffff_ffff_c000_1000, u64::MAX, "xennet_poll (xen_netfront)"),
        ];
        assert_eq!(of(file.path(), &addresses).unwrap(), expected);
    }

    #[test]
    fn an_error_names_the_invalid_line() {
        let error = functions("ffffffff81000000 T _stext\nnonsense\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2, `nonsense`, is not a symbol: its address, type and name");
    }

    #[test]
    fn this_kernels_own_table_is_parsed() {
        // Without privileges all addresses are zero, so only one name is kept.
        assert!(functions(&fs::read_to_string("/proc/kallsyms").unwrap()).is_ok());
    }
}
