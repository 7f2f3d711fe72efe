//! HAProxy as a load balancer between a client and a server.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::running::Running;

/// How often to check whether it listens, or has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Parameters of the proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The port to listen on.
    pub port: u16,
    /// The HTTP server to forward to.
    pub to: SocketAddr,
    /// The number of threads.
    pub threads: usize,
    /// How long to run, in seconds.
    pub seconds: f64,
}

/// Runs HAProxy for its time; calls `started` when it listens.
///
/// # Errors
/// If it is missing, or exits too early, with its standard error.
pub fn run(spec: &Spec, started: impl FnOnce()) -> io::Result<()> {
    let program = Command::new("haproxy")
        // In the foreground, with its configuration from standard input.
        .args(["-db", "-f", "/proc/self/fd/0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut haproxy = Running(program.map_err(|error| io::Error::new(error.kind(), format!("haproxy: {error}")))?);
    if let Some(mut input) = haproxy.0.stdin.take() {
        // If it has exited already, its own message explains more than a broken pipe.
        let _ = input.write_all(configuration(spec).as_bytes());
    }
    let end = Instant::now() + Duration::try_from_secs_f64(spec.seconds).map_err(io::Error::other)?;
    let mut started = Some(started);
    while Instant::now() < end {
        check(&mut haproxy)?;
        if started.is_some() && TcpStream::connect((Ipv4Addr::LOCALHOST, spec.port)).is_ok() {
            started.take().into_iter().for_each(|started| started());
        }
        thread::sleep(POLL_INTERVAL);
    }
    match started {
        Some(_) => Err(io::Error::other(format!("haproxy does not listen at port {} yet", spec.port))),
        None => Ok(()),
    }
}

/// A configuration by which every request has its own connection on both sides.
fn configuration(spec: &Spec) -> String {
    let Spec { port, to, threads, .. } = spec;
    format!(
        "global\n nbthread {threads}\ndefaults\n mode http\n option httpclose\n timeout connect 5s\n \
         timeout client 10s\n timeout server 10s\nfrontend in\n bind :{port}\n default_backend out\nbackend out\n \
         server out {to}\n"
    )
}

/// Fails with its standard error if it has exited.
fn check(haproxy: &mut Running) -> io::Result<()> {
    let Some(status) = haproxy.0.try_wait()? else { return Ok(()) };
    let mut words = String::new();
    if let Some(errors) = &mut haproxy.0.stderr {
        errors.read_to_string(&mut words)?;
    }
    Err(io::Error::other(format!("haproxy ended with {status}: {}", words.trim())))
}
