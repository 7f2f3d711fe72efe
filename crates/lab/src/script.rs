//! Record and replay of the requests to a machine that nothing from outside may reach while it runs.
//!
//! A first run sends the requests as usual and records each of them, with what the lab had received before it. In a replay the
//! machine has these requests in its initramfs and executes them by itself. The lab's code runs again on the answers; each
//! request it makes must equal the recorded one.

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
pub(crate) enum Transport {
    /// Sent over the console.
    Live(UnixStream),
    /// Sent over the console and recorded. The script is written to the file with the last request, which powers the machine
    /// off.
    Record(UnixStream, Mutex<Vec<Step>>, PathBuf),
    /// Not sent: the machine has the recorded requests, and each request made is compared with the next of them.
    Replay(Mutex<VecDeque<Step>>),
}

impl Transport {
    /// The transport of a machine that replays a recorded script.
    pub(crate) fn replay(script: &Path) -> Result<Transport, Error> {
        let describe = || script.display().to_string();
        let file = File::open(script).doing(describe)?;
        let steps = read_script(BufReader::new(file)).doing(describe)?;
        Ok(Transport::Replay(Mutex::new(steps.into())))
    }

    /// The ids of the requests that the machine executes without being sent them.
    pub(crate) fn ids(&self) -> Vec<u64> {
        match self {
            Transport::Live(_) | Transport::Record(..) => Vec::new(),
            Transport::Replay(steps) => steps.lock().expect(NOT_POISONED).iter().map(|step| step.request.id).collect(),
        }
    }

    /// The factor on all time limits: recording and replaying run in slow emulation.
    pub(crate) fn time_factor(&self) -> u32 {
        match self {
            Transport::Live(_) => 1,
            Transport::Record(..) => 4,
            Transport::Replay(_) => 40,
        }
    }

    /// Makes a request of the machine `name`. `after` is how many events of each id were received since the last request.
    ///
    /// # Errors
    /// [`Error::Gone`] if the machine has ended, [`Error::Script`] if the request differs from the recorded one.
    pub(crate) fn send(&self, name: &str, after: BTreeMap<u64, usize>, request: Request) -> Result<(), Error> {
        let gone = |_| Error::gone(name);
        match self {
            Transport::Live(console) => {
                let mut console = console;
                console.write_all(&encode(&request)).map_err(gone)
            }
            Transport::Record(console, steps, path) => {
                let mut console = console;
                console.write_all(&encode(&request)).map_err(gone)?;
                let last = request.to.is_none() && request.run == Command::PowerOff;
                let mut steps = steps.lock().expect(NOT_POISONED);
                steps.push(Step { after, request });
                if last { write_script(path, &steps) } else { Ok(()) }
            }
            Transport::Replay(steps) => {
                let step = steps.lock().expect(NOT_POISONED).pop_front();
                let words = |request: &Request| String::from_utf8_lossy(&encode(request)).trim_end().to_owned();
                let recorded = step.map(|step| step.request);
                // The recorded numbers went through JSON: so must these before they are compared.
                let asked = serde_json::from_slice(&encode(&request)).ok();
                if recorded.is_some() && recorded.clone().map(without_addresses) == asked.map(without_addresses) {
                    return Ok(());
                }
                let recorded = recorded.as_ref().map_or("nothing".to_owned(), words);
                Err(Error::Script { guest: name.to_owned(), asked: words(&request), recorded })
            }
        }
    }
}

/// A request without what may differ between runs: the addresses to look up, which depend on the counts. The answer repeats them.
fn without_addresses(mut request: Request) -> Request {
    if let Command::Symbols { addresses, .. } = &mut request.run {
        addresses.clear();
    }
    request
}

const NOT_POISONED: &str = "no thread panics while it holds the lock";

/// Writes a script. The file appears under its name only when it is complete.
fn write_script(path: &Path, steps: &[Step]) -> Result<(), Error> {
    let describe = || path.display().to_string();
    let directory = path.parent().unwrap_or(Path::new("."));
    let text: Vec<u8> = steps.iter().flat_map(encode).collect();
    let file = tempfile::NamedTempFile::new_in(directory).doing(describe)?;
    fs::write(file.path(), text).doing(describe)?;
    file.persist(path).map(drop).map_err(|error| error.error).doing(describe)
}

/// Writes a copy of an initramfs with a script in it to `path`. The kernel unpacks concatenated archives one after the other.
pub(crate) fn append_script(initramfs: &Path, script: &Path, path: &Path) -> Result<(), Error> {
    let describe = || path.display().to_string();
    let mut archive = Archive::new();
    archive.file("script", &fs::read(script).doing(|| script.display().to_string())?);
    fs::copy(initramfs, path).doing(describe)?;
    let mut file = File::options().append(true).open(path).doing(describe)?;
    file.write_all(&archive.finish()).doing(describe)
}

/// Reads a file that a machine appends to, until the machine ends.
pub(crate) struct Follow {
    /// The file, which only grows.
    pub file: File,
    /// A socket whose other end the machine holds: it closes when the machine ends.
    pub end: UnixStream,
}

impl Read for Follow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        self.end.set_read_timeout(Some(POLL_INTERVAL))?;
        loop {
            match self.file.read(into)? {
                0 => {}
                length => return Ok(length),
            }
            match self.end.read(&mut [0]) {
                // The machine may have written since the read above.
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
    fn a_replay_accepts_the_recorded_requests_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        let (console, theirs) = UnixStream::pair().unwrap();
        let after = BTreeMap::from([(0, 1)]);
        let record = Transport::Record(console, Mutex::default(), path.clone());
        record.send("red", after.clone(), request(1, Command::Counters)).unwrap();
        assert!(!path.exists());
        record.send("red", BTreeMap::new(), request(2, Command::PowerOff)).unwrap();
        drop(record);
        let sent: Vec<Request> =
            BufReader::new(theirs).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert_eq!(sent, [request(1, Command::Counters), request(2, Command::PowerOff)]);

        let replay = Transport::replay(&path).unwrap();
        assert_eq!(replay.ids(), [1, 2]);
        replay.send("red", BTreeMap::new(), request(1, Command::Counters)).unwrap();
        let error = replay.send("red", BTreeMap::new(), request(2, Command::Hello)).unwrap_err().to_string();
        assert!(error.contains("hello") && error.contains("power_off"), "{error}");
        let error = replay.send("red", BTreeMap::new(), request(3, Command::Hello)).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    }

    #[test]
    fn a_file_is_followed_until_its_writer_ends() {
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
