//! Chromium, driven over WebDriver (W3C recommendation).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A headless browser with one window; ended on drop.
pub(crate) struct Browser {
    driver: Child,
    session: String,
}

impl Browser {
    /// Starts it.
    pub(crate) fn start() -> Browser {
        let mut driver = Command::new("chromedriver");
        let driver = driver.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut driver = driver.expect("chromedriver is installed: apt-get install chromium-driver");
        let said = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port =
            said.filter_map(|line| Some(line.split_once("successfully on port ")?.1.trim_end_matches('.').to_owned()));
        let port = { port }.next().expect("chromedriver says its port");
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]
        });
        let wishes = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let url = format!("http://127.0.0.1:{port}/session");
        let mut browser = Browser { driver, session: String::new() };
        let session = post(&url, &json!({ "capabilities": { "alwaysMatch": wishes } }));
        browser.session = format!("{url}/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        self.ask("url", &json!({ "url": url }));
    }

    /// Runs a script in the page and returns what it returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.ask("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Messages of the page's console: errors, and what its content security policy forbade.
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.ask("se/log", &json!({ "type": "browser" }));
        entries.as_array().unwrap().iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// Changes the window's size.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.ask("window/rect", &json!({ "width": width, "height": height }));
    }

    fn ask(&self, command: &str, parameters: &Value) -> Value {
        post(&format!("{}/{command}", self.session), parameters)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser with its session.
        let _ = ureq::delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn post(url: &str, body: &Value) -> Value {
    let mut answer =
        ureq::post(url).config().http_status_as_error(false).build().send_json(body).expect("the driver answers");
    let answer: Value = answer.body_mut().read_json().expect("JSON");
    assert!(answer["value"]["error"].is_null(), "{url}: {answer}");
    answer["value"].clone()
}
