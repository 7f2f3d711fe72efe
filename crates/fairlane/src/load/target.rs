//! Parses servers, source addresses and sizes from the command line.

use super::UsageError;
use anyhow::Context;
use fairlane_load::traffic::http::parse_size;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// The port of `fairlane load server`.
pub(super) const PORT: u16 = 8000;
/// Largest number of addresses in a range.
const MAX_SOURCES: u32 = 65_536;

/// A server, and for HTTP the path to request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub address: SocketAddr,
    /// Name and port, as given.
    pub host: String,
    /// The path; none if no URL was given.
    pub path: Option<String>,
}

/// Parses `HOST`, `HOST:PORT` or `http://HOST:PORT/PATH`, and resolves the name.
///
/// # Errors
/// Invalid text, or an unknown host.
pub(super) fn parse(text: &str) -> anyhow::Result<Target> {
    if text.starts_with("https://") {
        return Err(UsageError(format!("{text}: a URL must begin with http://; TLS is not supported")).into());
    }
    let (rest, port, url) = match text.strip_prefix("http://") {
        Some(rest) => (rest, 80, true),
        None => (text, PORT, false),
    };
    let (host, path) = match rest.find('/') {
        Some(at) if url => (&rest[..at], Some(rest[at..].to_owned())),
        None if url => (rest, Some("/".to_owned())),
        _ => (rest, None),
    };
    let resolve = || {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::from((address, port))]);
        }
        let ported = match host.rsplit_once(':') {
            Some((_, digits)) if digits.parse::<u16>().is_ok() => host.to_owned(),
            _ => format!("{host}:{port}"),
        };
        ported.to_socket_addrs().map(Iterator::collect)
    };
    let addresses = resolve().with_context(|| format!("{text}: must be HOST, HOST:PORT or http://HOST:PORT/PATH"))?;
    // If a name has addresses of both families, IPv4 is used: it works in most labs.
    let address = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    let address = *address.with_context(|| format!("{host} has no address"))?;
    Ok(Target { address, host: host.to_owned(), path })
}

/// Parses an address, or a range of IPv4 addresses such as `10.0.0.1-10.0.0.9`.
///
/// # Errors
/// The message names the expected form.
pub(super) fn parse_source(text: &str) -> Result<Vec<IpAddr>, String> {
    let wrong = || format!("`{text}` is neither an address nor a range such as 10.0.0.1-10.0.0.9");
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let first = u32::from(first.parse::<Ipv4Addr>().map_err(|_| wrong())?);
    let last = u32::from(last.parse::<Ipv4Addr>().map_err(|_| wrong())?);
    if first > last || last - first >= MAX_SOURCES {
        return Err(format!("`{text}` is not a range of 1 to {MAX_SOURCES} addresses"));
    }
    Ok((first..=last).map(|address| Ipv4Addr::from(address).into()).collect())
}

/// Parses a size such as `16k`.
///
/// # Errors
/// The message names the expected form.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("`{text}` is not a size such as 512, 16k or 1m"))
}

/// Parses a percentage such as `5%`.
///
/// # Errors
/// The message names the expected form.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|number| (0.0..=1000.0).contains(number))
        .ok_or_else(|| format!("`{text}` is not a percentage such as 5%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_all_forms_of_targets() {
        for (text, address, path) in [
            ("127.0.0.1", "127.0.0.1:8000", None),
            ("127.0.0.1:81", "127.0.0.1:81", None),
            ("::1", "[::1]:8000", None),
            ("[::1]:81", "[::1]:81", None),
            ("http://127.0.0.1", "127.0.0.1:80", Some("/")),
            ("http://127.0.0.1:8080/a?b=http://c", "127.0.0.1:8080", Some("/a?b=http://c")),
        ] {
            let target = parse(text).unwrap();
            assert_eq!((target.address.to_string().as_str(), target.path.as_deref()), (address, path), "{text}");
        }
        for wrong in ["", "https://a/", "127.0.0.1:port", "127.0.0.1/path"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parses_sources_and_ranges() {
        assert_eq!(parse_source("::1").unwrap().len(), 1);
        let range = parse_source("10.0.0.254-10.0.1.1").unwrap();
        assert_eq!(
            range.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1"]
        );
        for wrong in ["", "10.0.0.9-10.0.0.1", "0.0.0.0-255.255.255.255", "a-b", "::1-::2"] {
            assert!(parse_source(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!((parse_percent("5%"), parse_percent("2.5")), (Ok(5.0), Ok(2.5)));
        assert!(parse_percent("-1%").is_err() && parse_percent("x").is_err());
    }
}
