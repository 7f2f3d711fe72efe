//! Checks that `docs/reference/policy.md` agrees with the code.

use super::problems;
use crate::Setting;
use crate::parse::{FILE_KEYS, LINK_KEYS, OBSERVE_KEYS, REMOVE_KEYS, SOCKETS_KEYS, TENANT_KEYS, UPLINK_KEYS, VIF_KEYS};

const REFERENCE: &str = include_str!("../../../../docs/reference/policy.md");

/// The text of the reference under a heading, up to the next heading.
fn part(heading: &str) -> &'static str {
    let (_, rest) = REFERENCE.split_once(&format!("\n{heading}\n")).expect(heading);
    rest.split("\n#").next().unwrap_or(rest)
}

#[test]
fn every_key_has_a_row() {
    // Tables have headings of their own.
    let file = FILE_KEYS.iter().filter(|key| !["observe", "sockets", "link", "tenant", "vif"].contains(key));
    let rows = file.map(|key| ("## The file", key));
    let rows = rows.chain(OBSERVE_KEYS.iter().map(|key| ("## `[observe]`", key)));
    let rows = rows.chain(SOCKETS_KEYS.iter().map(|key| ("## `[sockets]`", key)));
    let rows = rows.chain(REMOVE_KEYS.iter().map(|key| ("## Drop-in files", key)));
    let rows = rows.chain(LINK_KEYS.iter().map(|key| ("## `[[link]]`", key)));
    let rows = rows.chain(UPLINK_KEYS.iter().map(|key| ("### `uplink`", key)));
    let rows = rows.chain(TENANT_KEYS.iter().map(|key| ("## `[[tenant]]`", key)));
    for (heading, key) in rows.chain(VIF_KEYS.iter().map(|key| ("## `[[vif]]`", key))) {
        assert_eq!(part(heading).matches(&format!("\n| `{key}` |")).count(), 1, "{key} under {heading}");
    }
}

#[test]
fn every_range_is_the_one_in_the_error_message() {
    let of_link = [
        "rate = \"0bit/s\"",
        "rx_rate = \"0bit/s\"",
        "idle_timeout = \"0ms\"",
        "refill = \"0ms\"",
        "cpu = -1",
        "rx_pool = \"0B\"",
    ];
    let of_uplink = ["uplink.delay = \"1000s\"", "uplink.queue = \"0B\""];
    let of_vif = [
        "queues = 0",
        "weight = 0",
        "min_rate = \"0bit/s\"",
        "max_rate = \"0bit/s\"",
        "burst = \"0B\"",
        "max_frames = 0",
        "frame_burst = 0",
        "rx_weight = 0",
        "rx_min_rate = \"0bit/s\"",
        "rx_max_rate = \"0bit/s\"",
        "rx_burst = \"0B\"",
        "rx_max_frames = 0",
        "rx_frame_burst = 0",
        "rx_queue = \"0B\"",
        "rx_timeout = \"0ms\"",
    ];
    let cases = of_link.map(|line| ("## `[[link]]`", "link", line)).into_iter();
    let cases = cases.chain(of_uplink.map(|line| ("### `uplink`", "link", line)));
    for (heading, table, line) in cases.chain(of_vif.map(|line| ("## `[[vif]]`", "vif", line))) {
        let key = line.split(" =").next().unwrap().trim_start_matches("uplink.");
        let found = problems(&format!("[[{table}]]\n{line}\n"));
        let phrase =
            found.iter().find_map(|problem| problem.strip_prefix(&format!("p:2: {key} must be "))).expect(line);
        let range = phrase.split(',').next().unwrap().trim_end_matches(" or \"none\"");
        let row = part(heading).lines().find(|row| row.starts_with(&format!("| `{key}` |"))).expect(key);
        assert!(row.contains(&format!("| {range} |")), "{row}\n{range}");
    }
}

#[test]
fn every_setting_is_listed() {
    let known = Setting::parse("", "").unwrap_err().to_string();
    let (share, rest) = known.split_once("; of a tenant: ").unwrap();
    let (tenant, rest) = rest.split_once("; of a vif: ").unwrap();
    let (vif, link) = rest.split_once("; of a link: ").unwrap();
    let quoted = |list: &str| list.split(", ").map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let share = share.split_once("of a vif or tenant: ").unwrap().1;
    let row = [share, tenant, vif, link.trim_end_matches(')')].map(quoted).join(" | ");
    assert!(part("## Changes while it runs").contains(&format!("| {row} |")), "{row}");
}
