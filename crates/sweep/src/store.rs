//! The directory of a sweep: which grid it is of, and the parts that are done.

use crate::grid::Grid;
use crate::named::Digests;
use crate::rows::{self, Row};
use parquet::errors::ParquetError;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The version of the directory.
const SCHEMA: &str = "fairlane-sweep/1";

/// Most points of a part: enough that a part takes much longer than the start of a process, where points are small. A run of an
/// experiment is a part.
const PART: u64 = 64;

/// Parts that a sweep has at least, if it has as many points: for progress, and for several workers.
const PARTS: u64 = 100;

/// Why a sweep cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read, or a directory made.
    #[error("{}: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] fairlane_report::Error),
    /// A file with rows is not one, or cannot be written.
    #[error("{}: {why}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: ParquetError,
    },
    /// The directory is that of another sweep.
    #[error("{} holds the sweep of {of}: choose another directory, or remove it", path.display())]
    Other {
        /// The directory.
        path: PathBuf,
        /// What it is of.
        of: String,
    },
    /// HyperQueue is not there, or failed.
    #[error("{0}")]
    HyperQueue(String),
}

/// The directory of a sweep.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
    points: u64,
    part: u64,
}

/// What a directory is of.
#[derive(Serialize, Deserialize, PartialEq)]
struct About {
    schema: String,
    grid: String,
    plan: String,
    /// Files that the plan names.
    files: Digests,
    points: u64,
    part: u64,
}

impl About {
    /// What another directory of the same version is of.
    fn difference(&self, found: &About) -> String {
        let changed = |name: &&String| self.files.get(*name) != found.files.get(*name);
        let named = self.files.keys().chain(found.files.keys()).find(changed);
        match named.filter(|_| (&self.grid, &self.plan) == (&found.grid, &found.plan)) {
            Some(name) => format!("the same grid when {name} was another"),
            None => "another grid, plan or experiment".to_owned(),
        }
    }
}

impl Store {
    /// Opens the directory of a grid's sweep, or makes it.
    ///
    /// # Errors
    /// It is that of another sweep, of another version, or cannot be made.
    pub fn open(path: &Path, grid: &Grid) -> Result<Store, Error> {
        let points = grid.points();
        let most = if grid.is_experiment() { 1 } else { PART };
        let part = points.div_ceil(PARTS).clamp(1, most);
        let (text, plan, files) = (grid.text.clone(), grid.base.text.clone(), grid.files());
        let about = About { schema: SCHEMA.to_owned(), grid: text, plan, files, points, part };
        let store = Store { path: path.to_owned(), points, part };
        let parts = store.parts_directory();
        fs::create_dir_all(&parts).map_err(at(&parts))?;
        let file = path.join("sweep.json");
        match fs::read(&file) {
            Err(why) if why.kind() == ErrorKind::NotFound => {
                let text = serde_json::to_vec_pretty(&about).unwrap_or_default();
                fairlane_report::replace(&file, &text)?;
                Ok(store)
            }
            Err(why) => Err(at(&file)(why)),
            Ok(text) => {
                let of = match serde_json::from_slice::<About>(&text) {
                    Ok(found) if found == about => return Ok(store),
                    Ok(found) if found.schema != SCHEMA => format!("another version, {}", found.schema),
                    Ok(found) => about.difference(&found),
                    Err(_) => "another version".to_owned(),
                };
                Err(Error::Other { path: path.to_owned(), of })
            }
        }
    }

    /// How many parts it has.
    pub fn parts(&self) -> u64 {
        self.points.div_ceil(self.part)
    }

    /// The points of a part.
    pub(crate) fn points_of(&self, part: u64) -> Range<u64> {
        let from = part * self.part;
        from..self.points.min(from + self.part)
    }

    /// The parts that are not done.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn missing(&self) -> Result<Vec<u64>, Error> {
        let directory = self.parts_directory();
        let mut done = vec![false; self.parts() as usize];
        for entry in fs::read_dir(&directory).map_err(at(&directory))? {
            let name = entry.map_err(at(&directory))?.file_name();
            let part = name.to_str().and_then(|name| name.strip_suffix(".parquet")?.parse::<usize>().ok());
            if let Some(done) = part.and_then(|part| done.get_mut(part)) {
                *done = true;
            }
        }
        Ok((0..).zip(done).filter(|(_, done)| !done).map(|(part, _)| part).collect())
    }

    /// Runs the points of a part and writes their rows, whole or not at all.
    ///
    /// # Errors
    /// The rows cannot be written.
    pub fn work(&self, grid: &Grid, part: u64) -> Result<(), Error> {
        let rows: Vec<Row> = self.points_of(part).flat_map(|point| grid.point(point).run(grid)).collect();
        let file = self.file(part);
        let contents = rows::write(grid, &rows).map_err(|why| Error::Rows { path: file.clone(), why })?;
        Ok(fairlane_report::replace(&file, &contents)?)
    }

    /// All rows that are there, by point and repeat.
    ///
    /// # Errors
    /// A file cannot be read, or is not of this sweep.
    pub fn rows(&self, grid: &Grid) -> Result<Vec<Row>, Error> {
        let missing = self.missing()?;
        let mut all = Vec::new();
        for part in (0..self.parts()).filter(|part| missing.binary_search(part).is_err()) {
            let path = self.file(part);
            let file = File::open(&path).map_err(at(&path))?;
            all.extend(rows::read(file, grid).map_err(|why| Error::Rows { path, why })?);
        }
        Ok(all)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn parts_directory(&self) -> PathBuf {
        self.path.join("parts")
    }

    fn file(&self, part: u64) -> PathBuf {
        self.parts_directory().join(format!("{part:06}.parquet"))
    }
}

/// Names the file of a system's error.
pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |why| Error::Io { path, why }
}
