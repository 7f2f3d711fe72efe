//! The all-to-all exchange of a parallel computation by MPI: each node sends a block to each other node and waits for theirs.
//!
//! Open MPI's mpirun runs on the first node and starts a daemon on each other node by a remote shell, normally `ssh`. Here the
//! agents are that shell: mpirun calls the agent's program ([`rsh`]), which sends the daemon's command line to the other node's
//! agent ([`serve`]).

use std::{
    env,
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Instant,
};

use fairlane_load::{about, readable, seconds};
use serde::{Deserialize, Serialize};

use crate::running::Running;

/// The program that every node runs, in the agent's directory.
const PROGRAM: &str = "all-to-all";

/// Parameters of mpirun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// All nodes, by rank; mpirun runs on the first.
    pub nodes: Vec<Ipv4Addr>,
    /// The port of the other nodes' remote shells.
    pub port: u16,
    /// Bytes from each node to each other one; the sizes are measured one after the other.
    pub sizes: Vec<usize>,
    /// Iterations of a size.
    pub iterations: usize,
    /// The time limit, in seconds.
    pub seconds: f64,
}

/// Parameters of a remote shell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShellSpec {
    /// The node's own address, and the port to listen on.
    pub at: SocketAddr,
    /// The time limit, in seconds.
    pub seconds: f64,
}

/// The times of the iterations of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Bytes from each node to each other.
    pub bytes: usize,
    /// Seconds of each iteration, averaged over all nodes.
    pub seconds: Vec<f64>,
}

/// Runs mpirun until the exchange is done.
///
/// # Errors
/// If mpirun is missing, a node or its program fails (with mpirun's output), or the time limit is exceeded.
pub fn run(spec: &Spec) -> io::Result<Vec<Times>> {
    let hosts = spec.nodes.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(",");
    let agent = env::current_exe()?;
    let numbers = [spec.iterations].into_iter().chain(spec.sizes.iter().copied());
    // This name is Open MPI's own; `mpirun` may be another implementation's.
    let mut command = Command::new("orterun");
    command
        .args(["--allow-run-as-root", "--leave-session-attached", "-H", &hosts])
        .args(["--mca", "plm_rsh_agent", &format!("{} rsh {}", agent.display(), spec.port)])
        // Forces TCP, so that the network is measured even if the nodes are processes of one host.
        .args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"])
        .arg(agent.with_file_name(PROGRAM))
        .args(numbers.map(|number| number.to_string()));
    let end = Instant::now() + seconds("seconds", spec.seconds)?;
    let mut mpirun = Process::start(command, "mpirun", end, spec.seconds)?;
    let (mut times, mut words) = (Vec::new(), Vec::new());
    while let Some(line) = mpirun.next_line().map_err(|error| {
        let done = format!("{} of {} sizes are done among {hosts}", times.len(), spec.sizes.len());
        io::Error::new(error.kind(), format!("{error}: {done}\n{}", words.join("\n")))
    })? {
        match Times::read(&line) {
            Some(read) => times.push(read),
            None => words.push(line),
        }
    }
    mpirun.wait(&words)?;
    let complete = |(times, size): (&Times, &usize)| times.bytes == *size && times.seconds.len() == spec.iterations;
    if times.len() != spec.sizes.len() || !times.iter().zip(&spec.sizes).all(complete) {
        let expected = format!("{} iterations each of {:?} bytes were expected", spec.iterations, spec.sizes);
        return Err(io::Error::other(format!("{PROGRAM}: {expected}, but it measured {times:?}")));
    }
    Ok(times)
}

/// Serves as the remote shell of one node: calls `started` when it listens, runs the one command line it receives, and sends back
/// its output until it ends. It is no error if no command arrives in time.
///
/// # Errors
/// If the port is in use, the command fails (with its output), or the time limit is exceeded.
pub fn serve(spec: &ShellSpec, started: impl FnOnce()) -> io::Result<()> {
    let end = Instant::now() + seconds("seconds", spec.seconds)?;
    let listener = TcpListener::bind(spec.at).map_err(about(format_args!("TCP {}", spec.at)))?;
    started();
    if !readable(&listener, end)? {
        return Ok(());
    }
    let (mut caller, _) = listener.accept()?;
    let mut line = String::new();
    BufReader::new(&caller).read_line(&mut line)?;
    let words = split(&line);
    let (program, arguments) = words.split_first().ok_or_else(|| io::Error::other("remote shell: empty command"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    let mut daemon = Process::start(command, program, end, spec.seconds)?;
    let mut words = Vec::new();
    while let Some(line) = daemon.next_line()? {
        // The caller may have gone away.
        let _ = writeln!(caller, "{line}");
        words.push(line);
    }
    daemon.wait(&words)
}

/// Runs a command line on a node and copies its output to standard error, until it ends.
///
/// # Errors
/// If the node cannot be reached.
pub fn rsh(port: u16, node: &str, command: &[String]) -> io::Result<()> {
    let mut node = TcpStream::connect((node, port)).map_err(about(node))?;
    writeln!(node, "{}", command.join(" "))?;
    io::copy(&mut node, &mut io::stderr()).map(|_| ())
}

/// The words of a command line; quotes enclose whole words, as mpirun writes them.
fn split(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    let words = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    words.map(str::to_owned).collect()
}

impl Times {
    /// Parses a line of the program: bytes, then seconds.
    fn read(line: &str) -> Option<Times> {
        let (bytes, seconds) = line.split_once(' ')?;
        let seconds = seconds.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Times { bytes: bytes.parse().ok()?, seconds })
    }
}

/// A running program, and its output.
struct Process {
    name: String,
    running: Running,
    lines: Receiver<String>,
    /// The deadline, and the time limit in seconds for the message.
    end: Instant,
    seconds: f64,
}

impl Process {
    /// Starts the program. Standard output and standard error are separate pipes, so that their lines are not interleaved.
    fn start(mut command: Command, name: &str, end: Instant, seconds: f64) -> io::Result<Process> {
        let (output, errors) = (io::pipe()?, io::pipe()?);
        command.stdin(Stdio::null()).stdout(output.1).stderr(errors.1);
        // Open MPI looks for its programs on the PATH, which a guest's agent does not have.
        command.env("PATH", env::var_os("PATH").unwrap_or_else(|| "/bin".into()));
        let running = Running(command.spawn().map_err(about(name))?);
        let (sender, lines) = channel();
        for pipe in [output.0, errors.0] {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                    // After the time limit nobody receives.
                    let _ = sender.send(String::from_utf8_lossy(&line).trim_matches(['-', ' ']).to_owned());
                }
            });
        }
        Ok(Process { name: name.to_owned(), running, lines, end, seconds })
    }

    /// The next line that is not empty; none at the end of the output.
    fn next_line(&self) -> io::Result<Option<String>> {
        loop {
            match self.lines.recv_timeout(self.end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.is_empty() => (),
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let late = format!("{} has not ended within {} s", self.name, self.seconds);
                    return Err(io::Error::new(ErrorKind::TimedOut, late));
                }
            }
        }
    }

    /// Waits until it exits. A failure is an error with `words`, its output.
    fn wait(&mut self, words: &[String]) -> io::Result<()> {
        let status = self.running.0.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{}: {status}: {}", self.name, words.join("\n"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_programs_lines_are_parsed() {
        let times = Times { bytes: 1024, seconds: vec![0.001_5, 2.0] };
        assert_eq!(Times::read("1024 0.001500000 2.000000000"), Some(times));
        for other in ["", "1024", "64 0.1 x", "a 0.1", "mpirun noticed", "64 0.1  0.2"] {
            assert_eq!(Times::read(other), None, "{other}");
        }
    }

    #[test]
    fn quoted_words_are_not_split() {
        let line = " orted -mca ess \"env\" --mca plm_rsh_agent \"/init rsh 5001\" -mca x \"\"\n";
        assert_eq!(
            split(line),
            ["orted", "-mca", "ess", "env", "--mca", "plm_rsh_agent", "/init rsh 5001", "-mca", "x", ""]
        );
    }

    /// Runs a command line by a remote shell, on a port that no other test uses.
    fn remote(port: u16, seconds: f64, command: &str) -> io::Result<()> {
        let port = 30_000 + (std::process::id() % 500) as u16 * 4 + port;
        let at = ([127, 0, 0, 1], port).into();
        let (ready, started) = channel();
        thread::scope(|scope| {
            let shell = scope.spawn(move || serve(&ShellSpec { at, seconds }, || ready.send(()).unwrap()));
            started.recv().unwrap();
            if !command.is_empty() {
                rsh(port, "127.0.0.1", &[command.to_owned()]).unwrap();
            }
            shell.join().unwrap()
        })
    }

    #[test]
    fn a_remote_shell_runs_one_command() {
        remote(0, 20.0, " sh -c \"echo said\"").unwrap();
        let error = remote(0, 20.0, "sh -c \"echo why >&2; exit 3\"").unwrap_err().to_string();
        assert_eq!(error, "sh: exit status: 3: why");
        let error = remote(0, 20.0, "no-such-program").unwrap_err().to_string();
        assert!(error.starts_with("no-such-program: "), "{error}");
    }

    #[test]
    fn a_remote_shell_keeps_its_time_limit() {
        remote(1, 0.1, "").unwrap();
        let start = Instant::now();
        let error = remote(1, 0.3, "sleep 60").unwrap_err().to_string();
        assert!(error.starts_with("sleep has not ended within 0."), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    /// The program is not in this test's directory. Both nodes are local, as the remote shell would be this test's own program.
    #[test]
    fn a_program_that_cannot_be_run_is_named() {
        let nodes = vec![Ipv4Addr::LOCALHOST; 2];
        let spec = Spec { nodes, port: 9, sizes: vec![64], iterations: 10, seconds: 20.0 };
        let error = run(&spec).unwrap_err().to_string();
        assert!(error.starts_with("mpirun: exit status: ") && error.contains("/all-to-all"), "{error}");
        let error = run(&Spec { seconds: 0.001, ..spec }).unwrap_err().to_string();
        assert!(error.contains("0 of 1 sizes are done among 127.0.0.1,127.0.0.1"), "{error}");
    }
}
