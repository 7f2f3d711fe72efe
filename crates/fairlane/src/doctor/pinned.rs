//! Kernel settings that an administrator has pinned in a file. The doctor does not change them.

use super::snapshot::Snapshot;

/// Where administrators pin settings (sysctl.d(5)). Files in /usr/lib belong to the distribution.
const PLACES: [&str; 3] = ["/etc/sysctl.conf", "/etc/sysctl.d/", "/run/sysctl.d/"];

/// Where a setting is pinned: `FILE:LINE` of the first line found.
pub(super) fn find(snapshot: &Snapshot, key: &str) -> Option<String> {
    PLACES.iter().find_map(|place| {
        let mut files = snapshot.below(place).filter(|(rest, _)| rest.is_empty() || rest.ends_with(".conf"));
        files.find_map(|(rest, text)| {
            let line = text.lines().position(|line| sets(line, key))?;
            Some(format!("{place}{rest}:{}", line + 1))
        })
    })
}

/// Whether a line sets a key: `key = value`, `-key = value` (failure ignored), with `/` for `.` and `*` for anything.
fn sets(line: &str, key: &str) -> bool {
    let line = line.trim_start();
    let name = line.split_once('=').map_or("", |(name, _)| name);
    let name = name.trim_start_matches('-').trim().replace('/', ".");
    !line.starts_with(['#', ';']) && !name.is_empty() && matches(&name, key)
}

/// Whether a text matches a pattern in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    text.char_indices().map(|(index, _)| index).chain([text.len()]).any(|index| matches(rest, &text[index..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_setting_is_found() {
        let mut snapshot = Snapshot::default();
        snapshot
            .put("/etc/sysctl.conf", "# net.core.somaxconn = 1\n;net.core.somaxconn=1\nnet.core.rmem_max=1\n".into());
        snapshot.put("/etc/sysctl.d/README", "net.core.somaxconn = 1\n".into());
        assert_eq!(find(&snapshot, "net.core.somaxconn"), None);
        for line in ["net.core.somaxconn = 1", " -net.core.somaxconn=1", "net/core/somaxconn=1", "net.core.*=1"] {
            snapshot.put("/etc/sysctl.d/50-a.conf", format!("\n{line}\n"));
            assert_eq!(find(&snapshot, "net.core.somaxconn").as_deref(), Some("/etc/sysctl.d/50-a.conf:2"), "{line}");
            assert_eq!(find(&snapshot, "net.ipv4.tcp_tw_reuse"), None);
        }
    }
}
