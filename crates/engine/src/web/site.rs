//! What there is to ask for.

use super::Source;
use super::answer::Answer;
use super::page::{self, Page};
use super::request::{Guard, Request};
use super::watch::{Text, Watch};
use fairlane_policy::Kind;
use std::time::Instant;

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const JSON: &str = "application/json";

/// Everything that is served.
pub(super) struct Site {
    guard: Guard,
    page: Page,
    watch: Watch,
}

impl Site {
    pub(super) fn new(source: Source, guard: Guard) -> Site {
        Site { guard, page: Page::new(), watch: Watch::new(source) }
    }

    /// When [`Site::step`] is due.
    pub(super) fn next_step(&self) -> Instant {
        self.watch.next_step()
    }

    /// Adds to the history if it is time.
    pub(super) fn step(&mut self, now: Instant) {
        self.watch.step(now);
    }

    /// The answer to a request's head.
    pub(super) fn answer(&mut self, head: &[u8]) -> Answer {
        let request = match Request::read(head, &self.guard) {
            Ok(request) => request,
            Err(refusal) => return refusal,
        };
        match request.path {
            "/" => Answer::new("200 OK", page::KIND, self.page.text()).with(self.page.rules()),
            "/metrics" => answer(OPEN_METRICS, self.watch.metrics()),
            "/api/v1/snapshot" => answer(JSON, self.watch.reading()),
            "/api/v1/history" => self.history(&request),
            _ => {
                let sentence = "there are /, /metrics, /api/v1/snapshot and /api/v1/history\n";
                Answer::refusal("404 Not Found", sentence)
            }
        }
    }

    fn history(&self, request: &Request) -> Answer {
        let asked = Kind::ALL.into_iter().find_map(|kind| Some((kind, request.parameter(kind.name())?)));
        let Some((kind, name)) = asked else {
            return Answer::refusal("400 Bad Request", "whose history? for example /api/v1/history?vif=web\n");
        };
        let json = self.watch.history(kind, &name).map(|view| serde_json::to_string(&view));
        match json {
            Some(Ok(json)) => Answer::new("200 OK", JSON, json.into()),
            _ => Answer::refusal("404 Not Found", "it has no history: unknown, or a few seconds old\n"),
        }
    }
}

fn answer(kind: &str, text: Text) -> Answer {
    match text {
        Ok(text) => Answer::new("200 OK", kind, text),
        Err(sentence) => Answer::refusal("503 Service Unavailable", &sentence),
    }
}
