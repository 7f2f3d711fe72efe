//! Reads and writes result files, atomically, with errors that name the place in the file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::html;
use crate::json;
use crate::label::file_name;
use crate::plot::{Size, standalone};
use crate::result::{ResultFile, SCHEMA};

/// Why a result file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// `read`, `write` or `create`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A file of another version, or no result file.
    #[error("{file}: schema is `{found}`; this version knows `{SCHEMA}`")]
    Schema {
        /// The file.
        file: String,
        /// Its schema.
        found: String,
    },
    /// The file is not JSON of the schema.
    #[error("{file}: {place}: {cause}")]
    Shape {
        /// The file.
        file: String,
        /// The place in it, as a path such as `series[2].points[7]`.
        place: String,
        /// What is wrong, with line and column.
        cause: serde_json::Error,
    },
    /// A directory without any result file.
    #[error("{}: holds no result.json, nor does a directory in it; `--out` of a command that measures writes one", path.display())]
    NoResult {
        /// The directory.
        path: PathBuf,
    },
    /// The file breaks a consistency rule.
    #[error("{file}: {place}: {problem}")]
    Invalid {
        /// The file.
        file: String,
        /// The place in it, as a path such as `series[2].points[7]`.
        place: String,
        /// What is wrong, and what would be valid.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Head {
    schema: String,
}

impl ResultFile {
    /// Reads and checks the file at `path`; for a directory, `result.json` in it.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let path = if path.is_dir() { path.join("result.json") } else { path.to_owned() };
        let text =
            fs::read_to_string(&path).map_err(|cause| Error::Io { action: "read", path: path.clone(), cause })?;
        Self::from_json(&text, &path.display().to_string())
    }

    /// Reads and checks JSON text; errors name it by `file`.
    pub fn from_json(text: &str, file: &str) -> Result<Self, Error> {
        let shape = |place: String, cause| Error::Shape { file: file.to_owned(), place, cause };
        // The schema is checked first: errors about the fields of another version would mislead.
        let head: Head = serde_json::from_str(text)
            .map_err(|cause| shape(if cause.is_data() { "schema" } else { "not JSON" }.to_owned(), cause))?;
        if head.schema != SCHEMA {
            return Err(Error::Schema { file: file.to_owned(), found: head.schema });
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let result: Self = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| shape(error.path().to_string(), error.into_inner()))?;
        result.checked(file)?;
        Ok(result)
    }

    /// The file's text, with one line per series, metric and claim.
    pub fn to_json(&self) -> String {
        json::lines(self)
    }

    /// Checks the result, then writes `result.json` and `report.html` into `dir`, which is created if necessary. Each file is
    /// replaced atomically: after an error it is unchanged.
    pub fn write(&self, dir: &Path) -> Result<(), Error> {
        self.checked("result.json")?;
        create(dir)?;
        replace(&dir.join("result.json"), self.to_json())?;
        replace(&dir.join("report.html"), html::page(&[self]))
    }

    /// Checks the result, then replaces the file at `path`, from which it was read, and the `report.html` beside it if there is one.
    pub fn rewrite(&self, path: &Path) -> Result<(), Error> {
        self.checked(&path.display().to_string())?;
        replace(path, self.to_json())?;
        let page = path.with_file_name("report.html");
        if page.is_file() { replace(&page, html::page(&[self])) } else { Ok(()) }
    }

    fn checked(&self, file: &str) -> Result<(), Error> {
        self.check().map_err(|broken| Error::Invalid {
            file: file.to_owned(),
            place: broken.place,
            problem: broken.problem,
        })
    }
}

/// Writes the page of several results to `path`, whose directory is created if necessary. The file is replaced atomically: after
/// an error it is unchanged.
///
/// # Errors
/// [`Error::Io`].
pub fn write_page(path: &Path, results: &[&ResultFile]) -> Result<(), Error> {
    create(path.parent().unwrap_or(path))?;
    replace(path, html::page(results))
}

/// Writes each figure of several results as an SVG file into `dir`, which is created if necessary: for a paper, slides or a
/// README. A file is named by its experiment and the figure's title; of files with the same name, the second ends in `-2`, and so
/// on. Returns the number of figures.
///
/// # Errors
/// [`Error::Io`].
pub fn write_figures(dir: &Path, results: &[&ResultFile]) -> Result<usize, Error> {
    create(dir)?;
    let mut namesakes = BTreeMap::new();
    let figures = results.iter().flat_map(|result| result.figures.iter().map(move |figure| (*result, figure)));
    for (result, figure) in figures.clone() {
        let mut name = file_name(&format!("{} {}", result.experiment, figure.title));
        let namesakes = namesakes.entry(name.clone()).or_insert(0);
        *namesakes += 1;
        if *namesakes > 1 {
            name += &format!("-{namesakes}");
        }
        replace(&dir.join(name + ".svg"), standalone(result, figure, Size::Wide))?;
    }
    Ok(figures.count())
}

fn create(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|cause| Error::Io { action: "create", path: dir.to_owned(), cause })
}

/// Replaces `path` atomically, by renaming a temporary file in the same directory.
///
/// # Errors
/// [`Error::Io`].
pub fn replace(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask, as for any file
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file: NamedTempFile = builder.tempfile_in(dir)?;
        file.write_all(contents.as_ref())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|cause| Error::Io { action: "write", path: path.to_owned(), cause })
}
