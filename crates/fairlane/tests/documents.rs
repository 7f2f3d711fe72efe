//! Checks the documentation: all relative links and anchors are valid, on a forge and in the book; README is short; and the reference
//! has every command and option.

use pulldown_cmark::{BrokenLink, Event, LinkType, Options, Parser, Tag, TagEnd};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Limits of README: a screen or two.
const README_LINES: usize = 120;
const README_COLUMNS: usize = 120;

/// The pages outside the book.
const OUTSIDE: [&str; 5] = ["README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The links, anchors and includes of a page.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// A file that this page includes as its only content.
    includes: Option<String>,
    /// References without a definition.
    undefined: Vec<String>,
}

impl Page {
    fn read(text: &str) -> Page {
        let undefined = RefCell::new(Vec::new());
        let record = |broken: BrokenLink<'_>| {
            // A single word in brackets is no reference.
            if broken.link_type != LinkType::Shortcut {
                undefined.borrow_mut().push(broken.reference.to_string());
            }
            None
        };
        let mut page = Page::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_with_broken_link_callback(text, Options::ENABLE_TABLES, Some(record)) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string())
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.heading(&heading.take().unwrap_or_default()),
                Event::Text(text) | Event::Code(text) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&text));
                }
                _ => {}
            }
        }
        let included = text.trim().strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
        Page { includes: included.map(str::to_owned), undefined: undefined.take(), ..page }
    }

    /// Adds the anchor that forges and mdBook derive from a heading.
    fn heading(&mut self, text: &str) {
        let kept = text
            .to_lowercase()
            .chars()
            .filter(|char| char.is_alphanumeric() || " -_".contains(*char))
            .collect::<String>();
        let anchor = kept.trim().replace(' ', "-");
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
}

/// Normalizes a path, relative to the root of the repository, without `.` and `..`. None if it leaves the repository.
fn normalize(path: &Path) -> Option<PathBuf> {
    let mut normalized = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normalized.push(name),
            Component::ParentDir => normalized.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normalized)
}

/// Adds the names of all pages below a directory, relative to the root.
fn pages_below(root: &Path, directory: &Path, names: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root.join(directory)).unwrap() {
        let entry = entry.unwrap();
        let name = directory.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            pages_below(root, &name, names);
        } else if name.extension().is_some_and(|extension| extension == "md") {
            names.push(name);
        }
    }
}

/// The documentation of a repository.
struct Documents {
    root: PathBuf,
    pages: BTreeMap<PathBuf, Page>,
    /// Redirects of the book, from book.toml.
    redirects: BTreeMap<String, String>,
}

impl Documents {
    fn read(root: &Path) -> Documents {
        let mut names = OUTSIDE.map(PathBuf::from).to_vec();
        pages_below(root, Path::new("docs"), &mut names);
        let text = |name: &Path| {
            fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{}: {error}", name.display()))
        };
        let pages = names.into_iter().map(|name| (name.clone(), Page::read(&text(&name)))).collect();
        let book: toml::Table = text(Path::new("docs/book.toml")).parse().unwrap();
        let redirects = book["output"]["html"].get("redirect").and_then(|redirects| redirects.as_table()).cloned();
        let redirects = redirects.unwrap_or_default().into_iter();
        let redirects = redirects.map(|(from, to)| (from, to.as_str().unwrap().to_owned())).collect();
        Documents { root: root.to_owned(), pages, redirects }
    }

    /// All problems of the documentation.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, page) in &self.pages {
            let wrong = page.links.iter().filter_map(|link| self.link_problem(name, link));
            problems.extend(wrong.map(|wrong| format!("{}: {wrong}", name.display())));
            let undefined =
                page.undefined.iter().map(|reference| format!("{}: [{reference}] is not defined", name.display()));
            problems.extend(undefined);
            if let Some(included) = &page.includes {
                problems.extend(self.include_problems(name, included));
            }
        }
        problems.extend(self.contents_problems());
        problems
    }

    /// The problem of a link of a page, if any.
    fn link_problem(&self, name: &Path, link: &str) -> Option<String> {
        if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
            return None;
        }
        let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let target =
            if path.is_empty() { Some(name.to_owned()) } else { normalize(&name.with_file_name("").join(path)) };
        let Some(target) = target.filter(|target| self.root.join(target).is_file()) else {
            return Some(format!("{link} is not there"));
        };
        if name.starts_with("docs") && !target.starts_with("docs") {
            return Some(format!("{link} is not in the book"));
        }
        let anchor = anchor?;
        let included = self.pages.get(&target).and_then(|page| Some((target.clone(), page.includes.as_ref()?)));
        let included = included.and_then(|(target, file)| normalize(&target.with_file_name("").join(file)));
        let found = self.pages.get(&included.unwrap_or(target)).is_some_and(|page| page.anchors.contains(anchor));
        (!found).then(|| format!("{link}: there is no such heading"))
    }

    /// The problems of a page that includes a file. Links of that file are relative to this page in the book.
    fn include_problems(&self, name: &Path, included: &str) -> Vec<String> {
        let directory = name.with_file_name("");
        let Some(page) = normalize(&directory.join(included)).and_then(|file| self.pages.get(&file)) else {
            return vec![format!("{}: {included} is not there", name.display())];
        };
        let mut problems = Vec::new();
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            let path = link.split('#').next().unwrap_or_default();
            let target = normalize(&directory.join(path)).unwrap_or_default();
            let address = target.strip_prefix("docs").unwrap_or(&target).with_extension("html");
            let from = format!("/{}", address.display());
            let to = self
                .redirects
                .get(&from)
                .map(|to| normalize(&Path::new("docs").join(&address).with_file_name("").join(to)));
            let is_valid = match to {
                Some(to) => to.is_some_and(|to| self.pages.contains_key(&to.with_extension("md"))),
                None => self.pages.contains_key(&target),
            };
            if !is_valid {
                problems.push(format!("{}: {link} of {included} leads nowhere in the book", name.display()));
            }
        }
        problems
    }

    /// Pages that are not exactly once in the book's contents.
    fn contents_problems(&self) -> Vec<String> {
        let contents = Path::new("docs/SUMMARY.md");
        let named = self.pages[contents]
            .links
            .iter()
            .filter_map(|link| normalize(&Path::new("docs").join(link)))
            .collect::<Vec<_>>();
        let pages = self.pages.keys().filter(|name| name.starts_with("docs") && *name != contents);
        let times = pages.map(|page| (page, named.iter().filter(|named| *named == page).count()));
        let wrong = times.filter(|(_, times)| *times != 1);
        wrong.map(|(page, times)| format!("{} is {times} times in SUMMARY.md, not once", page.display())).collect()
    }
}

#[test]
fn links_are_valid_and_each_page_is_in_the_book() {
    let problems = Documents::read(&root()).problems();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(
        text.lines().count() <= README_LINES,
        "README.md has {} lines, not {README_LINES} at most",
        text.lines().count()
    );
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        assert!(columns <= README_COLUMNS, "README.md:{}: {columns} columns, not {README_COLUMNS} at most", number + 1);
    }
}

/// Adds the options and subcommands of a command that are not in the reference.
fn add_missing(command: &[&str], reference: &str, missing: &mut Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_fairlane")).args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let options = help.lines().filter_map(|line| line.trim().strip_prefix("--"));
    let options = options.filter_map(|option| option.split(|char: char| !char.is_alphanumeric() && char != '-').next());
    // As a whole word: `--rate` does not count for `--rate-limit`.
    let has =
        |word: &str| reference.split(|char: char| !char.is_alphanumeric() && char != '-').any(|each| each == word);
    let absent = options.map(|option| format!("--{option}")).filter(|option| !has(option));
    missing.extend(absent.map(|option| format!("{} {option}", command.join(" "))));
    let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap_or_default());
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        let command = [command, &[name]].concat();
        if !has(name) {
            missing.push(command.join(" "));
        }
        add_missing(&command, reference, missing);
    }
}

#[test]
fn every_command_and_option_is_in_the_reference() {
    let reference = fs::read_to_string(root().join("docs/reference/command-line.md")).unwrap();
    let mut missing = Vec::new();
    add_missing(&[], &reference, &mut missing);
    assert!(missing.is_empty(), "not in docs/reference/command-line.md:\n{}", missing.join("\n"));
}

#[test]
fn problems_are_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = root.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    for name in OUTSIDE {
        write(name, "# Title\n");
    }
    write(
        "README.md",
        "# A title\n[1](docs/a.md#two-words) [2](docs/gone.md) [3](docs/a.md#none) [4](#a-title) [5][six] [in brackets]\n",
    );
    write("SECURITY.md", "# Title\n[1](docs/a.md) [2](docs/b.md)\n## Some `code`: more\n");
    write(
        "docs/a.md",
        "# A\n## Two words\n## Two words\n[1](../README.md) [2](#two-words-1) [3](b.md#some-code-more) [4](b.md#none)\n",
    );
    write("docs/b.md", "{{#include ../SECURITY.md}}\n");
    write("docs/c.md", "# C\n![1](picture.svg)\n[2](https://example.com/none)\n");
    write("docs/SUMMARY.md", "- [A](a.md)\n- [B](b.md)\n- [A](a.md)\n");
    write("docs/book.toml", "[output.html.redirect]\n\"/docs/a.html\" = \"../a.html\"\n");
    let problems = Documents::read(root.path()).problems();
    let expected = [
        "README.md: docs/gone.md is not there",
        "README.md: docs/a.md#none: there is no such heading",
        "README.md: [six] is not defined",
        "docs/a.md: ../README.md is not in the book",
        "docs/a.md: b.md#none: there is no such heading",
        "docs/b.md: docs/b.md of ../SECURITY.md leads nowhere in the book",
        "docs/c.md: picture.svg is not there",
        "docs/a.md is 2 times in SUMMARY.md, not once",
        "docs/c.md is 0 times in SUMMARY.md, not once",
    ];
    assert_eq!(problems, expected);
}
