//! A xenstored in memory, over a socket: a tree, and watches over it. It implements the protocol independently, from
//! the public header, so that the client is not tested against itself.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
struct Tree {
    keys: BTreeMap<String, String>,
    /// Connections, and the watches of each.
    clients: Vec<(UnixStream, Vec<Watch>)>,
    /// A key that is rewritten whenever it is read.
    rewritten: Option<String>,
}

/// Absolute path, path as given, token.
type Watch = (String, String, String);

/// The store. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Xenstored(Arc<(Mutex<Tree>, Condvar)>);

/// Relative paths are below dom0's own path.
fn absolute(path: &str) -> String {
    if path.starts_with('/') || path.starts_with('@') { path.to_owned() } else { format!("/local/domain/0/{path}") }
}

fn message(kind: u32, id: u32, payload: &[u8]) -> Vec<u8> {
    let words = [kind, id, 0, payload.len() as u32];
    words.into_iter().flat_map(u32::to_ne_bytes).chain(payload.iter().copied()).collect()
}

impl Xenstored {
    /// Opens a connection to the store.
    pub(crate) fn connect(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut tree = self.0.0.lock().unwrap();
        tree.clients.push((ours.try_clone().unwrap(), Vec::new()));
        let (store, client) = (self.clone(), tree.clients.len() - 1);
        std::thread::spawn(move || store.serve(client, ours));
        theirs
    }

    fn serve(&self, client: usize, mut stream: UnixStream) {
        loop {
            let mut header = [0; 16];
            if stream.read_exact(&mut header).is_err() {
                return;
            }
            let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
            let mut payload = vec![0; word(12) as usize];
            stream.read_exact(&mut payload).unwrap();
            let mut parts = payload.splitn(2, |byte| *byte == 0);
            let given = String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
            let rest = String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
            let token = rest.trim_end_matches('\0').to_owned();
            let path = absolute(&given);
            let (kind, id) = (word(0), word(4));
            let mut tree = self.0.0.lock().unwrap();
            let missing = |answer: Option<String>| answer.map_or((16, "ENOENT\0".to_owned()), |answer| (kind, answer));
            let ok = || (kind, "OK\0".to_owned());
            let (kind, answer) = match kind {
                1 => {
                    let below = format!("{path}/");
                    let names = tree.keys.keys().filter_map(|key| key.strip_prefix(&below)?.split('/').next());
                    let mut names: Vec<&str> = names.collect();
                    names.dedup();
                    let list = names.iter().map(|name| format!("{name}\0")).collect::<String>();
                    missing((!names.is_empty() || tree.keys.contains_key(&path)).then_some(list))
                }
                2 => {
                    if tree.rewritten.as_ref() == Some(&path) {
                        tree.send_events(&path);
                    }
                    missing(tree.keys.get(&path).cloned())
                }
                4 => {
                    tree.clients[client].1.push((path.clone(), given.clone(), token.clone()));
                    // The reply is sent first, then the event that every watch begins with.
                    stream.write_all(&message(4, id, b"OK\0")).unwrap();
                    stream.write_all(&message(15, 0, format!("{given}\0{token}\0").as_bytes())).unwrap();
                    continue;
                }
                5 => {
                    tree.clients[client].1.retain(|(watched, _, known)| (watched, known) != (&path, &token));
                    ok()
                }
                11 => {
                    tree.keys.insert(path.clone(), rest);
                    tree.send_events(&path);
                    ok()
                }
                13 => {
                    tree.remove(&path);
                    ok()
                }
                other => panic!("a request of kind {other}"),
            };
            self.0.1.notify_all();
            drop(tree);
            if stream.write_all(&message(kind, id, answer.as_bytes())).is_err() {
                return;
            }
        }
    }

    /// Closes all connections, as a killed process does.
    pub(crate) fn end(&self) {
        for (stream, _) in &self.0.0.lock().unwrap().clients {
            stream.shutdown(Shutdown::Both).unwrap();
        }
    }

    /// Writes keys below a path.
    pub(crate) fn write(&self, path: &str, keys: &[(&str, &str)]) {
        let mut tree = self.0.0.lock().unwrap();
        for (key, value) in keys {
            let path = format!("{}/{key}", absolute(path));
            tree.keys.insert(path.clone(), (*value).to_owned());
            tree.send_events(&path);
        }
        self.0.1.notify_all();
    }

    /// Rewrites a key whenever it is read, for ever.
    pub(crate) fn rewrite_for_ever(&self, path: &str) {
        let mut tree = self.0.0.lock().unwrap();
        tree.rewritten = Some(absolute(path));
        tree.send_events(path);
    }

    pub(crate) fn remove(&self, path: &str) {
        self.0.0.lock().unwrap().remove(&absolute(path));
        self.0.1.notify_all();
    }

    pub(crate) fn read(&self, path: &str) -> Option<String> {
        self.0.0.lock().unwrap().keys.get(&absolute(path)).cloned()
    }

    /// Waits until a key has this value.
    #[track_caller]
    pub(crate) fn until(&self, path: &str, value: &str) {
        let tree = self.0.0.lock().unwrap();
        let path = absolute(path);
        let other = |tree: &mut Tree| tree.keys.get(&path).is_none_or(|found| found != value);
        let (tree, waited) = self.0.1.wait_timeout_while(tree, Duration::from_secs(10), other).unwrap();
        assert!(!waited.timed_out(), "{path} is {:?}, not {value:?}", tree.keys.get(&path));
    }
}

impl Tree {
    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.keys.retain(|key, _| key != path && !key.starts_with(&below));
        self.send_events(path);
    }

    /// Sends the events of a change. A watch below a removed path fires too.
    fn send_events(&mut self, path: &str) {
        for (stream, watches) in &mut self.clients {
            for (watched, given, token) in watches.iter() {
                let below = path.strip_prefix(watched.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'));
                let above = watched.strip_prefix(path).filter(|rest| rest.starts_with('/')).map(|_| "");
                if let Some(rest) = below.or(above) {
                    // A client that is gone needs no event.
                    let _ = stream.write_all(&message(15, 0, format!("{given}{rest}\0{token}\0").as_bytes()));
                }
            }
        }
    }
}
