//! The commands `fairlane load` and `fairlane compare`.
#![forbid(unsafe_code)]

use fairlane_report::{Axis, ResultFile, Series};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A new directory for a test.
fn home(name: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("load-{name}"));
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home).unwrap();
    home
}

fn fairlane(home: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
    command.args(arguments.split_whitespace()).current_dir(home).stdin(Stdio::null());
    command
}

fn run(home: &Path, arguments: &str) -> Output {
    fairlane(home, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server process, killed on drop.
struct Server {
    child: Child,
    at: String,
}

impl Server {
    fn start(home: &Path, arguments: &str) -> Server {
        let mut command = fairlane(home, &format!("load server --listen 127.0.0.1:0 {arguments}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("serving at ").unwrap_or_else(|| panic!("{line}")).to_owned();
        // Later output must be read, or the server would block.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Server { child, at }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Interrupts the server. Returns its standard output.
    fn end(mut self) -> String {
        self.signal(Signal::SIGINT);
        let mut output = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(self.child.wait().unwrap().success());
        output
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn client_and_server_write_all_their_files() {
    let home = home("files");
    let server = Server::start(&home, "--threads 2 --out server --interval 0.2");
    let done = run(&home, &format!("load client http {} --size 0,2k --seconds 0.4 --repeats 2 --out out", server.at));
    assert!(done.status.success(), "{done:?}");
    let summary = text(&done.stdout);
    assert!(summary.contains("Trans./s") && summary.contains("The plots: out/report.html"), "{summary}");
    let result = ResultFile::read(&home.join("out")).unwrap();
    assert_eq!((result.experiment.as_str(), &result.settings["complete"]), ("load-http", &true.into()));
    let sizes: Vec<f64> = result.find("connections_per_second").unwrap().points.iter().map(|point| point[0]).collect();
    assert_eq!(sizes, [0.0, 0.0, 2048.0, 2048.0]);
    assert!(result.metrics["connections_per_second/2048"].value > 0.0);
    let intervals = std::fs::read_to_string(home.join("out/intervals.csv")).unwrap();
    assert!(
        intervals.lines().count() > 4 && intervals.lines().all(|line| line.split(',').count() == 12),
        "{intervals}"
    );
    for name in ["latency-0.hgrm", "latency-2048.hgrm", "connect-0.hgrm"] {
        let histogram = std::fs::read_to_string(home.join("out").join(name)).unwrap();
        assert!(histogram.contains("Percentile TotalCount") && histogram.contains("#[Max"), "{histogram}");
    }
    let served = server.end();
    assert!(served.contains("accepted") && served.contains("processor time"), "{served}");
    let served = ResultFile::read(&home.join("server")).unwrap();
    assert!(served.metrics["connections_per_second"].value > 0.0 && served.metrics["accepted/1"].value > 0.0);
}

#[test]
fn repeats_stop_or_warn() {
    let home = home("repeats");
    let server = Server::start(&home, "--threads 1");
    let done = run(&home, &format!("load client rr {} --seconds 0.3 --within 0% --json", server.at));
    assert!(done.status.success(), "{done:?}");
    let result = ResultFile::from_json(&text(&done.stdout), "standard output").unwrap();
    assert_eq!(result.metrics["requests_per_second"].n, 30);
    assert!(result.warnings[0].contains("30 repeats"), "{:?}", result.warnings);
    let done = run(&home, &format!("load client rr {} --seconds 0.3 --within 1000% --json", server.at));
    let result = ResultFile::from_json(&text(&done.stdout), "standard output").unwrap();
    assert_eq!((result.metrics["requests_per_second"].n, result.warnings.len()), (3, 0));
}

#[test]
fn the_result_is_incomplete_if_the_server_dies() {
    let home = home("dies");
    let server = Server::start(&home, "--threads 1");
    let arguments = format!("load client crr {} --seconds 60 --interval 0.1 --out out", server.at);
    let mut client = fairlane(&home, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(client.stderr.take().unwrap());
    // A title, then an interval with some requests.
    for _ in 0..2 {
        errors.read_line(&mut String::new()).unwrap();
    }
    drop(server);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(1));
    assert!(rest.contains("incomplete: ") && rest.contains("So far: connections per second of "), "{rest}");
    let result = ResultFile::read(&home.join("out")).unwrap();
    assert_eq!(result.settings["complete"], false);
    assert!(result.metrics["connections_per_second"].value > 0.0 && result.warnings[0].starts_with("incomplete: "));
}

#[test]
fn missing_file_descriptors_are_reported() {
    let home = home("descriptors");
    let server = Server::start(&home, "--threads 1");
    let command = format!(
        "ulimit -n 40; exec {} load client rr {} --connections 100 --seconds 1",
        env!("CARGO_BIN_EXE_fairlane"),
        server.at
    );
    let done = Command::new("sh").args(["-c", &command]).output().unwrap();
    let output = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1));
    assert!(output.contains("no file descriptors left: this process may have 40"), "{output}");
}

/// In a network namespace with ten ports. Without the permission to create one, the test is skipped with a message.
#[test]
fn exhausted_ports_are_reported_and_several_sources_help() {
    let home = home("ports");
    let unshared = Command::new("unshare").args(["--user", "--map-root-user", "--net", "ip", "link"]).output();
    if !unshared.is_ok_and(|output| output.status.success()) {
        assert_ne!(std::env::var("FAIRLANE_GUESTS").as_deref(), Ok("required"), "unshare and ip are needed");
        eprintln!("SKIPPED: cannot create a network namespace (unshare --user --net), so ports cannot be exhausted");
        return;
    }
    let script = r#"
        ip link set lo up
        echo 50000 50009 > /proc/sys/net/ipv4/ip_local_port_range
        $FAIRLANE load server --listen 127.0.0.1:8000 --threads 1 2> server.err &
        until grep -q serving server.err; do sleep 0.05; done
        $FAIRLANE load client rr 127.0.0.1 --connections 20 --seconds 0.5 --close reset 2> few.err
        echo few $?
        $FAIRLANE load client rr 127.0.0.1 --connections 20 --seconds 0.5 --close reset --source 127.0.0.2-127.0.0.4
        echo many $?
        kill -INT $!
        wait
    "#;
    let done = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", script])
        .env("FAIRLANE", env!("CARGO_BIN_EXE_fairlane"))
        .current_dir(&home)
        .output()
        .unwrap();
    let output = text(&done.stdout);
    assert!(output.contains("few 1\n") && output.contains("many 0\n"), "{done:?}");
    let few = std::fs::read_to_string(home.join("few.err")).unwrap();
    assert!(few.contains("ports exhausted: every local port (50000 to 50009) to 127.0.0.1:8000"), "{few}");
}

#[test]
fn invalid_arguments_are_reported() {
    let home = home("arguments");
    for (arguments, output) in [
        ("crr 127.0.0.1 --request 3", "request is 3: 12 to 67108864 is possible"),
        ("crr 127.0.0.1 --rate fast", "--rate must be requests per second"),
        ("udp 127.0.0.1 --rate 7", "--rate must be a number and a unit"),
        ("stream 127.0.0.1 --rate 7", "a stream has none"),
        ("http https://127.0.0.1/", "TLS is not supported"),
        ("http 127.0.0.1 --connections 0", "connections is 0"),
        ("rr 127.0.0.1 --seconds 0", "seconds is 0"),
    ] {
        let done = run(&home, &format!("load client {arguments}"));
        assert_eq!(done.status.code(), Some(2), "{arguments}: {done:?}");
        assert!(text(&done.stderr).contains(output), "{done:?}");
    }
    let server = Server::start(&home, "");
    let done = run(&home, &format!("load server --listen {}", server.at));
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("cannot listen at 127.0.0.1"), "{done:?}");
}

/// Writes a result of HTTP by size, with repeats that differ slightly.
fn result(dir: &Path, scale: f64) {
    let mut result = ResultFile::new("load-http");
    let points = [0.0, 1024.0, 65536.0]
        .into_iter()
        .flat_map(|size| [0.99, 1.0, 1.01].map(|factor| [size, 20_000.0 * scale * factor / (1.0 + size / 65536.0)]));
    let axis = Axis::new("object size", "bytes");
    result.series(Series::new("connections_per_second", "1/s", axis.clone()).points(points));
    result.series(Series::new("latency_p50", "us", axis).points([[0.0, 50.0 / scale]]));
    result.write(dir).unwrap();
}

#[test]
fn a_loss_above_the_limit_is_a_failure() {
    let home = home("compare");
    result(&home.join("native"), 1.0);
    result(&home.join("guest"), 0.8);
    let done = run(&home, "compare native guest");
    let output = text(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert!(output.contains("0.800") && output.contains("20.0% ("), "{output}");
    assert!(run(&home, "compare native guest --max-loss 25%").status.success());
    let done = run(&home, "compare native guest --max-loss 10% --reference --out out");
    let output = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        output.contains("FAILS: guest loses no more of connections_per_second than allowed at object size"),
        "{output}"
    );
    assert!(output.contains("vSphere 5, Intel e1000e") && output.contains("HAProxy Technologies 2011"), "{output}");
    let page = ResultFile::read(&home.join("out")).unwrap();
    let titles: Vec<&str> = page.figures.iter().map(|figure| figure.title.as_str()).collect();
    let expected =
        ["Connections per second by object size", "Loss of connections per second by object size", "Published figures"];
    assert_eq!(titles, expected);
    // A gain is no loss.
    assert!(run(&home, "compare guest native --max-loss 0%").status.success());
}

#[test]
fn incomparable_results_are_reported() {
    let home = home("incomparable");
    result(&home.join("http"), 1.0);
    ResultFile::new("other").value("height", 1.0, "m").write(&home.join("other")).unwrap();
    let done = run(&home, "compare http other");
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("http and other have no series or metric"), "{done:?}");
    let mut half = ResultFile::new("load-http");
    half.value("connections_per_second", 1.0, "1/s").setting("complete", false).write(&home.join("half")).unwrap();
    let done = run(&home, "compare half half");
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stdout).contains("half is incomplete"), "{done:?}");
}
