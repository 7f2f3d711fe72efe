//! The relay of a host's agent: forwards requests to its guests' agents, and their answers to the lab.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs::File,
    io::{self, BufRead, BufReader, Write},
    sync::{Arc, Mutex},
    thread,
};

use crate::{Event, Message, Request, encode};

/// How many lines of a guest's console are reported when it ends.
const LAST: usize = 12;

/// The attached guests, by name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Relay {
    guests: Arc<Mutex<HashMap<String, Guest>>>,
}

struct Guest {
    console: File,
    /// Requests whose last event has not arrived.
    waiting: HashSet<u64>,
}

impl Relay {
    /// Reads a guest's console in a thread. The guest's message that it is ready answers the request `id`. Lines that are no
    /// messages are printed on this host's own console, with the guest's name before them.
    pub(crate) fn attach(
        &self,
        id: u64,
        name: &str,
        console: File,
        send: impl Fn(u64, Event) + Send + 'static,
    ) -> io::Result<()> {
        let input = console.try_clone()?;
        let mut guests = self.guests.lock().expect("no thread panics while it forwards");
        if guests.contains_key(name) {
            return Err(io::Error::other(format!("{name} is attached already")));
        }
        guests.insert(name.to_owned(), Guest { console, waiting: HashSet::from([id]) });
        let (relay, name) = (self.clone(), name.to_owned());
        thread::spawn(move || {
            let why = relay.listen(id, &name, input, &send);
            let guest = relay.guests.lock().expect("no thread panics while it forwards").remove(&name);
            for id in guest.into_iter().flat_map(|guest| guest.waiting) {
                send(id, Event::Gone(why.clone()));
            }
        });
        Ok(())
    }

    /// Forwards a request to a guest.
    pub(crate) fn forward(&self, name: &str, request: Request) -> io::Result<()> {
        let mut guests = self.guests.lock().expect("no thread panics while it forwards");
        let guest = guests.get_mut(name).ok_or_else(|| io::Error::other(format!("no guest {name} is attached")))?;
        guest.waiting.insert(request.id);
        // Written under the lock, so that lines are not interleaved.
        guest.console.write_all(&encode(&Request { to: None, ..request })).inspect_err(|_| {
            guest.waiting.remove(&request.id);
        })
    }

    /// Reads a console until it ends; returns the reason and the last printed lines.
    fn listen(&self, attached: u64, name: &str, console: File, send: &impl Fn(u64, Event)) -> String {
        let mut input = BufReader::new(console);
        let mut line = Vec::new();
        let mut printed = VecDeque::new();
        let end = loop {
            match input.read_until(b'\n', &mut line) {
                Ok(0) => break "its console was closed".to_owned(),
                Ok(_) => {}
                Err(error) => break format!("its console cannot be read: {error}"),
            }
            match serde_json::from_slice(&line) {
                Ok(Message { id, event }) => {
                    let id = if id == 0 { attached } else { id };
                    if event.ends() {
                        let mut guests = self.guests.lock().expect("no thread panics while it forwards");
                        guests.get_mut(name).map(|guest| guest.waiting.remove(&id));
                    }
                    send(id, event);
                }
                Err(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    eprintln!("{name}: {text}");
                    printed.truncate(LAST - 1);
                    printed.push_front(text);
                }
            }
            line.clear();
        };
        printed.into_iter().rfold(end, |report, text| format!("{report}\n    {text}"))
    }
}
