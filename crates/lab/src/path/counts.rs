//! The plugin's counts: the instructions of each block of code, by CPU.
//!
//! The format is documented in `plugin/path-length.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::error::{Error, FormatError, IoContext};

/// A place of code. Code of two domains at the same address is on different pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The virtual address.
    pub address: u64,
    /// The number of the machine page, relative to an arbitrary one that is fixed during a run.
    pub page: u64,
}

/// One CPU's counts at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Instructions executed there; an instruction with a repeat prefix counts once.
    pub executed: u64,
    /// Instructions of all CPUs while this CPU belonged to the domain that was entered here, as a hypervisor accounts them.
    pub charged: u64,
}

/// The counts at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// The number of the kernel it belongs to or runs under; 0 if unknown.
    pub kernel: u64,
    /// One tally per CPU.
    pub tallies: Vec<Tally>,
}

/// All counts up to a mark, or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of all CPUs; each repetition of a repeated instruction counts.
    pub clock: u64,
    /// By place.
    pub places: BTreeMap<Place, Code>,
}

impl Counts {
    /// Reads the file of a mark.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Counts`].
    pub fn read(path: &Path) -> Result<Counts, Error> {
        let text = fs::read_to_string(path).doing(|| path.display().to_string())?;
        Counts::parse(&text).map_err(|source| Error::Counts { path: path.to_owned(), source })
    }

    /// Parses the text of such a file.
    ///
    /// # Errors
    /// The first line that does not have the plugin's format.
    pub fn parse(text: &str) -> Result<Counts, FormatError> {
        let mut lines = text.lines().zip(1..);
        let wrong = |line, text: &str, wanted| FormatError { line, text: text.to_owned(), wanted };
        let (head, _) = lines.next().unwrap_or(("", 1));
        let (cpus, clock) = header(head).ok_or_else(|| wrong(1, head, "`clock CPUS INSTRUCTIONS`"))?;
        let mut counts = Counts { clock, ..Counts::default() };
        for (text, line) in lines {
            let (place, code) = block(text)
                .filter(|(_, code)| code.tallies.len() == cpus)
                .ok_or_else(|| wrong(line, text, "a block: its address, page, kernel, and two numbers for each CPU"))?;
            // A place has several lines if blocks of several lengths start there.
            let none = || Code { tallies: vec![Tally::default(); cpus], ..Code::default() };
            let sums = counts.places.entry(place).or_insert_with(none);
            sums.kernel = code.kernel;
            for (sum, tally) in sums.tallies.iter_mut().zip(code.tallies) {
                sum.executed += tally.executed;
                sum.charged += tally.charged;
            }
        }
        Ok(counts)
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> usize {
        self.places.values().next().map_or(0, |code| code.tallies.len())
    }

    /// Instructions of some CPUs. [`Counts::clock`] is larger, as it counts each repetition of an instruction.
    pub fn executed(&self, cpus: &BTreeSet<usize>) -> u64 {
        let of_place =
            |code: &Code| cpus.iter().filter_map(|cpu| code.tallies.get(*cpu)).map(|t| t.executed).sum::<u64>();
        self.places.values().map(of_place).sum()
    }

    /// The counts since an earlier mark of the same run.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let none = Code::default();
        let places = self.places.iter().map(|(place, code)| {
            let before = earlier.places.get(place).unwrap_or(&none);
            let before = before.tallies.iter().copied().chain(std::iter::repeat(Tally::default()));
            let difference = code.tallies.iter().zip(before).map(|(after, before)| Tally {
                executed: after.executed.saturating_sub(before.executed),
                charged: after.charged.saturating_sub(before.charged),
            });
            (*place, Code { kernel: code.kernel, tallies: difference.collect() })
        });
        let idle = |tally: &Tally| *tally == Tally::default();
        let places = places.filter(|(_, code)| !code.tallies.iter().all(idle)).collect();
        Counts { clock: self.clock.saturating_sub(earlier.clock), places }
    }
}

fn header(line: &str) -> Option<(usize, u64)> {
    let (cpus, clock) = line.strip_prefix("clock ")?.split_once(' ')?;
    Some((cpus.parse().ok()?, clock.parse().ok()?))
}

fn block(line: &str) -> Option<(Place, Code)> {
    let mut words = line.split(' ');
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let page = words.next()?.parse().ok()?;
    let kernel = words.next()?.parse().ok()?;
    let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    let tallies = pairs.iter().map(|&[executed, charged]| Tally { executed, charged }).collect();
    rest.is_empty().then_some((Place { address, page }, Code { kernel, tallies }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIRST: &str =
        "clock 2 100\nffffffff81000000 7 5 40 60 0 0\nffffffff81000000 7 5 10 0 0 0\n401000 9 0 0 0 50 40\n";
    const SECOND: &str = "clock 2 180\nffffffff81000000 7 5 90 70 0 0\n401000 9 6 0 0 50 40\n402000 9 6 0 0 40 70\n";

    #[test]
    fn counts_between_two_marks_are_their_difference() {
        let between = Counts::parse(SECOND).unwrap().since(&Counts::parse(FIRST).unwrap());
        assert_eq!((between.cpus(), between.clock, between.executed(&BTreeSet::from([0, 1]))), (2, 80, 80));
        let tally = |executed, charged| Tally { executed, charged };
        let places = [
            (Place { address: 0x40_2000, page: 9 }, Code { kernel: 6, tallies: vec![tally(0, 0), tally(40, 70)] }),
            (
                Place { address: 0xffff_ffff_8100_0000, page: 7 },
                Code { kernel: 5, tallies: vec![tally(40, 10), tally(0, 0)] },
            ),
        ];
        assert_eq!(between.places, places.into());
    }

    #[test]
    fn an_error_names_the_faulty_line() {
        for (text, line) in [
            ("", 1),
            ("clock 1\n", 1),
            ("clock 1 5\n401000 9 0 1\n", 2),
            ("clock 1 5\n401000 9 0 1 1\nxyz 9 0 1 1\n", 3),
            ("clock 2 5\n401000 9 0 1 1\n", 2),
        ] {
            let error = Counts::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.to_string().contains("is not"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(clock [0-3] [0-9]{1,3}\n)?([0-9a-fx]{1,4}( [0-9]{1,20}){0,5}\n){0,5}") {
            let _ = Counts::parse(&text);
        }
    }
}
