//! What the host asks of a computer that nothing from outside may reach while it runs.
//!
//! First the host asks as ever, in a rehearsal, and each request is kept with what the host had heard before it. In a
//! performance the computer has these requests with it; the host's code runs again against what it is told, and where it
//! would ask, its request must be the one of the script.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use fairlane_agent::{Command, Request, Step, encode, read_script};

use crate::{
    cpio::Archive,
    error::{Error, IoContext},
};

/// How requests reach an agent.
pub enum Way {
    /// They are sent.
    Live(UnixStream),
    /// They are sent, and kept for a performance: in a file, once the last one is made, which powers the computer off.
    Rehearsal(UnixStream, Mutex<Vec<Step>>, PathBuf),
    /// They are there already.
    Performance(Mutex<VecDeque<Step>>),
}

impl Way {
    /// The way to a computer that has a script with it.
    pub fn performance(script: &Path) -> Result<Way, Error> {
        let describe = || script.display().to_string();
        let file = File::open(script).doing(describe)?;
        let steps = read_script(BufReader::new(file)).doing(describe)?;
        Ok(Way::Performance(Mutex::new(steps.into())))
    }

    /// The ids of the requests that are there already.
    pub fn ids(&self) -> Vec<u64> {
        match self {
            Way::Live(_) | Way::Rehearsal(..) => Vec::new(),
            Way::Performance(steps) => steps.lock().expect(UNHURT).iter().map(|step| step.request.id).collect(),
        }
    }

    /// How much longer than on the real clock an answer may take.
    pub fn patience(&self) -> u32 {
        match self {
            Way::Live(_) => 1,
            Way::Rehearsal(..) => 4,
            Way::Performance(_) => 40,
        }
    }

    /// Makes a request of the computer `name`, after so many events of each id were heard since the last.
    ///
    /// # Errors
    /// [`Error::Gone`] where it has ended, [`Error::Script`] where the request is not the script's.
    pub fn send(&self, name: &str, after: BTreeMap<u64, usize>, request: Request) -> Result<(), Error> {
        let gone = |_| Error::gone(name);
        match self {
            Way::Live(console) => {
                let mut console = console;
                console.write_all(&encode(&request)).map_err(gone)
            }
            Way::Rehearsal(console, steps, path) => {
                let mut console = console;
                console.write_all(&encode(&request)).map_err(gone)?;
                let last = request.to.is_none() && request.run == Command::PowerOff;
                let mut steps = steps.lock().expect(UNHURT);
                steps.push(Step { after, request });
                if last { keep(path, &steps) } else { Ok(()) }
            }
            Way::Performance(steps) => {
                let step = steps.lock().expect(UNHURT).pop_front();
                let words = |request: &Request| String::from_utf8_lossy(&encode(request)).trim_end().to_owned();
                let scripted = step.map(|step| step.request);
                // Numbers are to have gone the same way.
                let asked = serde_json::from_slice(&encode(&request)).ok();
                if scripted.is_some() && scripted.clone().map(general) == asked.map(general) {
                    return Ok(());
                }
                let scripted = scripted.as_ref().map_or("nothing".to_owned(), words);
                Err(Error::Script { guest: name.to_owned(), asked: words(&request), scripted })
            }
        }
    }
}

/// A request without what may differ: the addresses that are looked up once all is counted. The answer tells which they were.
fn general(mut request: Request) -> Request {
    if let Command::Symbols { addresses, .. } = &mut request.run {
        addresses.clear();
    }
    request
}

const UNHURT: &str = "no thread panics while it asks";

/// Keeps a script; no half-written one is ever seen under the name.
fn keep(path: &Path, steps: &[Step]) -> Result<(), Error> {
    let describe = || path.display().to_string();
    let directory = path.parent().unwrap_or(Path::new("."));
    let text: Vec<u8> = steps.iter().flat_map(encode).collect();
    let file = tempfile::NamedTempFile::new_in(directory).doing(describe)?;
    fs::write(file.path(), text).doing(describe)?;
    file.persist(path).map(drop).map_err(|error| error.error).doing(describe)
}

/// An initramfs with a script in it: the kernel unpacks archives that stand one behind the other.
pub fn scripted(initramfs: &Path, script: &Path, path: &Path) -> Result<(), Error> {
    let describe = || path.display().to_string();
    let mut archive = Archive::new();
    archive.file("script", &fs::read(script).doing(|| script.display().to_string())?);
    fs::copy(initramfs, path).doing(describe)?;
    let mut file = File::options().append(true).open(path).doing(describe)?;
    file.write_all(&archive.finish()).doing(describe)
}

/// What a computer writes into a file, read as it comes, until the computer ends: then `end` does.
pub struct Follow {
    /// The file, which only grows.
    pub file: File,
    /// The other end is the computer's.
    pub end: UnixStream,
}

impl Read for Follow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        const GLANCE: Duration = Duration::from_millis(20);
        self.end.set_read_timeout(Some(GLANCE))?;
        loop {
            match self.file.read(into)? {
                0 => {}
                length => return Ok(length),
            }
            match self.end.read(&mut [0]) {
                // It may have written meanwhile.
                Ok(0) => return self.file.read(into),
                Err(error) if ![io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind()) => {
                    return self.file.read(into);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    fn request(id: u64, run: Command) -> Request {
        Request { id, to: None, delay: 0.1, run }
    }

    #[test]
    fn what_was_rehearsed_is_what_may_be_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        let (console, theirs) = UnixStream::pair().unwrap();
        let after = BTreeMap::from([(0, 1)]);
        let rehearsal = Way::Rehearsal(console, Mutex::default(), path.clone());
        rehearsal.send("red", after.clone(), request(1, Command::Counters)).unwrap();
        assert!(!path.exists());
        rehearsal.send("red", BTreeMap::new(), request(2, Command::PowerOff)).unwrap();
        drop(rehearsal);
        let sent: Vec<Request> =
            BufReader::new(theirs).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert_eq!(sent, [request(1, Command::Counters), request(2, Command::PowerOff)]);

        let performance = Way::performance(&path).unwrap();
        assert_eq!(performance.ids(), [1, 2]);
        performance.send("red", BTreeMap::new(), request(1, Command::Counters)).unwrap();
        let error = performance.send("red", BTreeMap::new(), request(2, Command::Hello)).unwrap_err().to_string();
        assert!(error.contains("hello") && error.contains("power_off"), "{error}");
        let error = performance.send("red", BTreeMap::new(), request(3, Command::Hello)).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    }

    #[test]
    fn a_file_is_followed_to_its_writers_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (end, theirs) = UnixStream::pair().unwrap();
        let mut follow = Follow { file: file.reopen().unwrap(), end };
        file.write_all(b"one").unwrap();
        let mut bytes = [0; 3];
        follow.read_exact(&mut bytes).unwrap();
        file.write_all(b"two").unwrap();
        drop(theirs);
        let mut rest = Vec::new();
        follow.read_to_end(&mut rest).unwrap();
        assert_eq!((&bytes, &rest[..]), (b"one", &b"two"[..]));
    }
}
