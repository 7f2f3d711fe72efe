//! A request's head, and who may ask: a browser that another site sent is kept out by the name it asks for (DNS rebinding), and
//! strangers by a token.

use super::answer::Answer;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::borrow::Cow;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use subtle::ConstantTimeEq;

/// Most header fields of a request.
const FIELDS: usize = 64;

/// Fewest characters of a token.
const SHORTEST: usize = 16;

/// A request, as far as it matters.
pub(super) struct Request<'a> {
    /// The path, without the query.
    pub path: &'a str,
    query: &'a str,
}

impl<'a> Request<'a> {
    /// Reads a head, up to its empty line.
    ///
    /// # Errors
    /// The answer to a request that is not one, or not one of `GET`, or of a client that may not ask.
    pub(super) fn read(head: &'a [u8], guard: &Guard) -> Result<Request<'a>, Answer> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut parsed = httparse::Request::new(&mut fields);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err(Answer::refusal("400 Bad Request", "not a whole request\n")),
            Err(error) => return Err(Answer::refusal("400 Bad Request", &format!("not a request: {error}\n"))),
        }
        let field = |name: &str| {
            let field = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(field.value).ok()
        };
        guard.admit(field("host"), field("authorization"))?;
        if parsed.method != Some("GET") {
            return Err(Answer::refusal("405 Method Not Allowed", "only GET is answered\n").with("Allow: GET"));
        }
        let target = parsed.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ok(Request { path, query })
    }

    /// A parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        form_urlencoded::parse(self.query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// Who may ask: without a token, whoever can reach a loopback address.
#[derive(Default)]
pub(super) struct Guard {
    token: Option<String>,
}

impl Guard {
    /// Clients must know the token in a file.
    ///
    /// # Errors
    /// The file cannot be read, or its token is too short.
    pub(super) fn with_token(file: &Path) -> io::Result<Guard> {
        let text = fs::read_to_string(file)?;
        let token = text.trim();
        if token.len() < SHORTEST {
            let message = format!("a token must have at least {SHORTEST} characters, not {}", token.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Guard { token: Some(token.to_owned()) })
    }

    fn admit(&self, host: Option<&str>, authorization: Option<&str>) -> Result<(), Answer> {
        match &self.token {
            // A browser's user was asked for the token for this very name.
            Some(token) if authorization.is_some_and(|given| is_token(given, token)) => Ok(()),
            Some(_) => {
                let sentence = "the token is missing or wrong: give it as a password, or as a bearer token\n";
                Err(Answer::refusal("401 Unauthorized", sentence).with(r#"WWW-Authenticate: Basic realm="Fairlane""#))
            }
            // A name that another site's owner lets point to a loopback address would make this page part of that site.
            None if host.is_none_or(is_local) => Ok(()),
            None => Err(Answer::refusal("421 Misdirected Request", "ask for localhost or for an IP address\n")),
        }
    }
}

/// Whether this is a host that no other site's owner can choose: an address, or this computer.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok()),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether this is the token: as a bearer token (RFC 6750), or as any user's password (RFC 7617).
fn is_token(authorization: &str, token: &str) -> bool {
    let Some((scheme, given)) = authorization.split_once(' ') else { return false };
    let given = given.trim().as_bytes();
    if scheme.eq_ignore_ascii_case("bearer") {
        return given.ct_eq(token.as_bytes()).into();
    }
    let decoded = BASE64_STANDARD.decode(given).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"));
    let password = decoded.as_deref().and_then(|pair| pair.splitn(2, |byte| *byte == b':').nth(1));
    password.is_some_and(|password| password.ct_eq(token.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: &str = "correct horse battery";

    fn status(head: &str, guard: &Guard) -> String {
        match Request::read(head.as_bytes(), guard) {
            Ok(request) => format!("{} {:?}", request.path, request.parameter("vif")),
            Err(answer) => answer.status().to_owned(),
        }
    }

    #[test]
    fn only_names_that_nobody_else_can_choose_are_answered() {
        let asked = |host: &str| status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), &Guard::default());
        for host in ["localhost", "LOCALHOST:9477", "127.0.0.1", "127.0.0.1:9477", "[::1]:9477", "[::1]", "10.0.0.1"] {
            assert_eq!(asked(host), "/ None", "{host}");
        }
        for host in
            ["evil.example", "evil.example:9477", "localhost.evil.example", "127.0.0.1.evil.example", "[x]", "", ":1"]
        {
            assert_eq!(asked(host), "421 Misdirected Request", "{host}");
        }
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n", &Guard::default()), "/ None");
    }

    #[test]
    fn the_token_is_a_password_or_a_bearer_token() {
        let guard = Guard { token: Some(TOKEN.to_owned()) };
        let asked = |given: &str| status(&format!("GET / HTTP/1.1\r\nHost: a.example\r\n{given}\r\n"), &guard);
        let basic = |pair: &str| format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(pair));
        for right in [
            format!("authorization: bearer {TOKEN}\r\n"),
            basic(&format!("anyone:{TOKEN}")),
            basic(&format!(":{TOKEN}")),
        ] {
            assert_eq!(asked(&right), "/ None", "{right}");
        }
        for wrong in [
            String::new(),
            format!("Authorization: Bearer {TOKEN}x\r\n"),
            format!("Authorization: {TOKEN}\r\n"),
            "Authorization: Bearer\r\n".to_owned(),
            "Authorization: Basic %%%\r\n".to_owned(),
            basic(TOKEN),
            basic("anyone:"),
        ] {
            assert_eq!(asked(&wrong), "401 Unauthorized", "{wrong}");
        }
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        fs::write(&file, "secret\n").unwrap();
        let refused = Guard::with_token(&file).err().unwrap().to_string();
        assert_eq!(refused, "a token must have at least 16 characters, not 6");
        fs::write(&file, format!("{TOKEN}\n")).unwrap();
        assert_eq!(Guard::with_token(&file).unwrap().token.as_deref(), Some(TOKEN));
    }

    #[test]
    fn paths_and_parameters() {
        let asked = |target: &str| status(&format!("GET {target} HTTP/1.1\r\n\r\n"), &Guard::default());
        assert_eq!(asked("/api/v1/history?link=x&vif=web%2F0+a"), "/api/v1/history Some(\"web/0 a\")");
        assert_eq!(asked("/metrics?"), "/metrics None");
        assert_eq!(status("POST / HTTP/1.1\r\n\r\n", &Guard::default()), "405 Method Not Allowed");
        assert_eq!(status("\r\n\r\n", &Guard::default()), "400 Bad Request");
        let many = "a: b\r\n".repeat(FIELDS + 1);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{many}\r\n"), &Guard::default()), "400 Bad Request");
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_answered(head in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::read(&head, &Guard::default()).err();
            let _ = Request::read(&head, &Guard { token: Some(TOKEN.to_owned()) }).err();
        }
    }
}
