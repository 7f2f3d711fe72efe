//! A server in this process, and parameters of a client for it.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use fairlane_load::traffic::{
    Pattern,
    client::{self, Close, Outcome, Spec},
    server::{self, Acceptors},
};

/// A server that ends when dropped.
pub(crate) struct Server {
    pub at: SocketAddr,
    over: Arc<AtomicBool>,
    serving: Option<thread::JoinHandle<server::Outcome>>,
}

impl Server {
    pub(crate) fn start(threads: usize, acceptors: Acceptors) -> Server {
        Server::patient(threads, acceptors, 30.0)
    }

    /// A server that closes connections which are idle for `patience` seconds.
    pub(crate) fn patient(threads: usize, acceptors: Acceptors, patience: f64) -> Server {
        let at = "127.0.0.1:0".parse().unwrap();
        let spec = server::Spec { at, threads, acceptors, seconds: None, interval: 0.1, patience };
        let over = Arc::new(AtomicBool::new(false));
        let (sender, address) = mpsc::channel();
        let serving = thread::spawn({
            let over = over.clone();
            move || server::run(&spec, &over, |at| sender.send(at).unwrap(), |_| ()).unwrap()
        });
        Server { at: address.recv().unwrap(), over, serving: Some(serving) }
    }

    /// Ends the server; returns its result.
    pub(crate) fn end(mut self) -> server::Outcome {
        self.over.store(true, Ordering::Relaxed);
        self.serving.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Parameters of a short run with one connection.
pub(crate) fn spec(to: SocketAddr, pattern: Pattern) -> Spec {
    Spec {
        to,
        pattern,
        threads: 1,
        connections: 1,
        rate: None,
        seconds: 0.4,
        interval: 0.1,
        timeout: 10.0,
        close: Close::Graceful,
        sources: Vec::new(),
    }
}

pub(crate) fn run(spec: &Spec) -> Outcome {
    client::run(spec, &AtomicBool::new(false), |_| ()).unwrap()
}

pub(crate) fn http(path: &str, keep_alive: bool) -> Pattern {
    Pattern::Http { host: "test".to_owned(), path: path.to_owned(), keep_alive }
}

/// A listener that passes its connections to `serve`, one after the other, in a thread that lives as long as the test.
pub(crate) fn scripted(mut serve: impl FnMut(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream);
        }
    });
    at
}
