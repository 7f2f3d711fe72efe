//! Sweeps of a small plan: what is done is kept, and the same whoever did it.

use fairlane_sweep::{Error, Grid, Row, Store, result, run_here};
use parquet::file::reader::{FileReader, SerializedFileReader};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PLAN: &str = include_str!("grids/plan.toml");

/// Two listed settings, one range and one distribution: 2 * 2 * 3 * 2 points.
const GRID: &str = r#"
plan = "plan.toml"
repeats = 2
draws = 2
goal = ["lowest requests/wait_p99", "highest copies/rate"]
measure = ["drops/nothing_of_this_name"]

[settings]
"host.host.vif.web.weight" = [100, 1000]
"host.0.vif.backup.scheduling" = []
"#;

fn directory(grid: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("plan.toml"), PLAN).unwrap();
    fs::write(directory.path().join("grid.toml"), grid).unwrap();
    directory
}

fn good() -> String {
    let settings = r#"
"host.host.link.rate" = { from = 50, to = 100, steps = 3, unit = "Mbit/s" }
"traffic.requests.kind" = ["poisson", "constant"]
"traffic.requests.rate" = { log_uniform = [1, 10], unit = "Mbit/s" }
"#;
    GRID.replace("\"host.0.vif.backup.scheduling\" = []\n", settings)
}

fn read(directory: &Path) -> Result<Grid, Vec<String>> {
    Grid::read(&directory.join("grid.toml")).map_err(|problems| {
        let place = format!("{}/", directory.display());
        problems.iter().map(|problem| problem.to_string().replace(&place, "")).collect()
    })
}

fn run(store: &Store, grid: &Grid, workers: usize) -> Vec<Row> {
    let mut steps = Vec::new();
    run_here(store, grid, workers, &mut |done, parts| steps.push((done, parts))).unwrap();
    assert_eq!(steps.last(), Some(&(store.parts(), store.parts())));
    assert!(store.missing().unwrap().is_empty());
    store.rows(grid).unwrap()
}

/// Rows without the time that they took.
fn timeless(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| format!("{:?}", Row { seconds: 0.0, ..row.clone() })).collect()
}

#[test]
fn a_sweep_gives_the_same_rows_however_it_is_worked_on() {
    let directory = directory(&good());
    let grid = read(directory.path()).unwrap();
    assert_eq!(grid.points(), 24);
    let store = |name| Store::open(&directory.path().join(name), &grid).unwrap();
    let alone = store("alone");
    let rows = run(&alone, &grid, 1);
    assert_eq!(rows.len(), 48);
    assert!(rows.windows(2).all(|pair| (pair[0].point, pair[0].repeat) < (pair[1].point, pair[1].repeat)));
    assert!(rows.iter().all(|row| row.error.is_none() && row.metrics[0] > 0.0 && row.metrics[1] > 0.0));
    assert!(rows.iter().all(|row| row.metrics[2].is_nan()));
    assert!(rows.chunks(2).all(|pair| pair[0].seed == 1 && pair[1].seed == 2 && pair[0].values == pair[1].values));
    // Each point draws for itself.
    let drawn: BTreeSet<String> = rows.iter().map(|row| format!("{:?}", row.values[3])).collect();
    assert!(drawn.len() > 20, "{drawn:?}");

    // Parts are lost, one was being written when its worker died, and another sweep's file lies about.
    let both = store("both");
    run(&both, &grid, 2);
    let parts = directory.path().join("both/parts");
    for part in [0, 7, 23] {
        fs::remove_file(parts.join(format!("{part:06}.parquet"))).unwrap();
    }
    fs::write(parts.join(".part123456"), "PAR1 cut short").unwrap();
    fs::write(parts.join("000099.parquet"), "not of this sweep").unwrap();
    assert_eq!(both.missing().unwrap(), [0, 7, 23]);
    assert_eq!(timeless(&run(&both, &grid, 2)), timeless(&rows));

    let page = result(&grid, &both, &rows);
    assert_eq!(page.metrics["points"].value, 24.0);
    let least =
        rows.chunks(2).map(|pair| (pair[0].metrics[0] + pair[1].metrics[0]) / 2.0).fold(f64::INFINITY, f64::min);
    assert!((page.metrics["best/requests/wait_p99"].value - least).abs() < 1e-12);
    let [all, front] = ["points", "front"].map(|name| &page.find(name).unwrap().points);
    assert_eq!(all.len(), 24);
    let betters = |a: &[f64; 2], b: &[f64; 2]| a[0] <= b[0] && a[1] >= b[1] && a != b;
    assert!(!front.is_empty() && front.iter().all(|point| !all.iter().any(|other| betters(other, point))));
    assert!(all.iter().all(|point| front.iter().any(|best| best == point || betters(best, point))));
    let maps = page.figures.iter().filter(|figure| figure.kind == fairlane_report::Kind::Heat);
    assert_eq!(maps.count(), 3);
    assert!(fairlane_report::html::page(&[&page]).contains("requests/wait_p99 by host.host.link.rate (Mbit/s)"));
}

#[test]
fn each_column_has_a_name_of_its_own() {
    let grid = good().replace("[\"drops/", "[\"error\", \"drops/").replace("[settings]", "[settings]\nseconds = [0.1]");
    let directory = directory(&grid);
    let grid = read(directory.path()).unwrap();
    let store = Store::open(&directory.path().join("out"), &grid).unwrap();
    assert!(run(&store, &grid, 2).iter().all(|row| row.error.is_none()));
    let file = fs::File::open(directory.path().join("out/parts/000000.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let fields = reader.metadata().file_metadata().schema().get_fields();
    let names: BTreeSet<&str> = fields.iter().map(|field| field.name()).collect();
    assert_eq!(names.len(), fields.len(), "{names:?}");
    assert!(["seconds", "seconds (setting)", "error", "error (metric)"].iter().all(|name| names.contains(name)));
}

#[test]
fn a_directory_is_of_one_sweep() {
    let directory = directory(&good());
    let out = directory.path().join("out");
    Store::open(&out, &read(directory.path()).unwrap()).unwrap();
    fs::write(directory.path().join("grid.toml"), good().replace("1000]", "999]")).unwrap();
    let other = Store::open(&out, &read(directory.path()).unwrap()).unwrap_err();
    assert!(matches!(other, Error::Other { .. }), "{other}");
    assert!(
        other.to_string().ends_with(
            "out holds the sweep of another grid, plan or experiment: choose another directory, or remove it"
        )
    );
    fs::write(out.join("sweep.json"), "{}").unwrap();
    let other = Store::open(&out, &read(directory.path()).unwrap()).unwrap_err();
    assert!(other.to_string().contains("another version"), "{other}");
}

#[test]
fn a_sweep_is_of_the_contents_of_the_files_that_its_points_name() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("plan.toml", &format!("{PLAN}\n[[guest]]\nvif = \"web\"\ntrace = \"first\"\n"));
    write(
        "grid.toml",
        "plan = \"plan.toml\"\ngoal = [\"highest copies/rate\"]\n\
         [settings]\n\"guest.0.trace\" = [\"second\", \"third\", \"fourth\"]\n",
    );
    ["first", "second", "third", "fourth"].into_iter().for_each(|name| write(name, "1ms\n2ms\n"));
    let open = || Store::open(&directory.path().join("out"), &read(directory.path()).unwrap());
    open().unwrap();
    // Not of a file that no point names.
    write("fifth", "nothing");
    open().unwrap();
    for name in ["first", "third"] {
        write(name, "1ms\n3ms\n");
        let other = open().unwrap_err().to_string();
        let wrong =
            format!("holds the sweep of the same grid when {name} was another: choose another directory, or remove it");
        assert!(other.ends_with(&wrong), "{other}");
        write(name, "1ms\n2ms\n");
        open().unwrap();
    }
}

#[test]
fn a_point_that_cannot_be_simulated_costs_only_itself() {
    let directory =
        directory(&good().replace("[100, 1000]", "[100, 0, 1000]").replace("requests/wait_p99", "requests/wait_p98"));
    let grid = read(directory.path()).unwrap();
    let store = Store::open(&directory.path().join("out"), &grid).unwrap();
    let rows = run(&store, &grid, 2);
    // A wrong weight, and a metric that no result has.
    assert_eq!(rows.len(), 36);
    let wrong =
        |text: &str| rows.iter().filter(|row| row.error.as_deref().is_some_and(|why| why.contains(text))).count();
    assert_eq!(wrong("weight must be 1 to 10000, not 0"), 12);
    assert_eq!(wrong("no metric is named `requests/wait_p98`, did you mean `requests/wait_p99`?"), 24);
    let page = result(&grid, &store, &rows);
    assert!(page.warnings[0].starts_with("36 points failed"), "{:?}", page.warnings);
}

#[test]
fn mistakes_are_named_by_their_lines() {
    let wrong = |from: &str, to: &str| {
        let text = good().replace(from, to);
        assert_ne!(text, good(), "{from}");
        read(directory(&text).path()).unwrap_err().join("\n")
    };
    let check = |from: &str, to: &str, expected: &str| {
        let said = wrong(from, to);
        assert!(said.contains(expected), "{to}: {said}");
    };
    check("plan.toml", "plam.toml", "grid.toml:2: cannot read");
    let experiment = "experiment = \"plan.toml\"\n";
    check("plan = \"plan.toml\"\n", "", "grid.toml:1: a grid needs a plan to simulate");
    check("plan = \"plan.toml\"\n", experiment, "grid.toml:2: an experiment needs a machine");
    check("draws = 2", experiment, "grid.toml:4: a grid has a plan or an experiment, not both");
    check("draws = 2", "lab = { machine = \"uml\" }", "grid.toml:4: lab says where an experiment runs");
    let lab = "experiment = \"plan.toml\"\nlab = { machine = \"umm\" }\n";
    check("plan = \"plan.toml\"\n", lab, "grid.toml:3: unknown variant `umm`");
    check("plan = \"plan.toml\"\n", &lab.replace("umm", "uml"), "plan.toml:1: no key is named `seconds`");
    check("repeats = 2", "repaets = 2", "grid.toml:3: unknown field `repaets`");
    check("repeats = 2", "repeats = 0", "repeats must be 1 or more");
    check("repeats = 2", "repeats = { metric = \"a\", within = 0, most = 9 }", "repeats need within above 0");
    check("draws = 2", "draws = 0", "grid.toml:4: draws must be 1 or more");
    check("draws = 2", "draws = 200000", "2400000 points are more than the limit of 100000");
    check("lowest req", "least req", "grid.toml:5: a goal is `lowest METRIC` or `highest METRIC`");
    check(".vif.web.", ".vif.wbe.", "`host.host.vif` in the plan has no `wbe`; it has web, backup");
    check("host.host.vif.web.", "host.", "`host` is a list: say which, such as `host.host.weight`");
    check("host.host.vif.web.weight", "hosts.host.weight", "the plan has no `hosts`");
    check(".web.weight", ".web.wieght", "unknown");
    check("host.host.vif.web.weight", "seed", "each run has a seed of its own");
    check("[100, 1000]", "[]", "a list has one or more");
    check(
        "[100, 1000]",
        "[100, \"a\"]",
        "a list has one or more numbers, or words, or true and false, all of one kind",
    );
    check("from = 50", "from = 500", "a range has a finite from below a finite to");
    check("[1, 10]", "[0, 10]", "a distribution is one of");
    check("\"Mbit/s\"", "\"Mbits\"", "point 0: ");
    check("\n[settings]", "\n[setings]", "unknown field `setings`");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a grid file holds, it is read or named as wrong.
    #[test]
    fn no_grid_is_fatal(at in 0..good().len(), with in ".{0,3}", cut in 0usize..12) {
        let mut text = good();
        let end = (at + cut).min(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(end) {
            text.replace_range(at..end, &with);
        }
        if let Err(problems) = read(directory(&text).path()) {
            prop_assert!(!problems.is_empty());
        }
    }
}

#[test]
fn examples_are_right() {
    let grids = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/grids");
    let examples: Vec<_> = grids.read_dir().unwrap().map(|entry| Grid::read(&entry.unwrap().path()).unwrap()).collect();
    assert!(!examples.is_empty());
    for grid in examples {
        let store = Store::open(tempfile::tempdir().unwrap().path(), &grid).unwrap();
        assert!(store.parts() > 0 && grid.points() < 1_000, "{}", grid.name);
    }
}
