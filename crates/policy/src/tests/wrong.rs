//! Every kind of mistake, with its line and message.

use super::problems;

/// A valid file of ten lines, which each test breaks.
const BASE: &str = r#"# line 1
control = "/run/c"

[[link]]
name = "lan"
rate = "100Mbit/s"

[[vif]]
name = "web"
socket = "web"
"#;

fn check(text: &str, expected: &[&str]) {
    assert_eq!(problems(text), expected, "\n{text}");
}

/// Checks the problems of `text` when it follows the valid file, from line 11 on.
fn after(text: &str, expected: &[&str]) {
    check(&format!("{BASE}{text}"), expected);
}

/// Checks the message for a key of the vif, on line 11.
fn vif(key: &str, message: &str) {
    after(key, &[&format!("p:11: {message}")]);
}

/// Checks the message for a key of the link, on line 7.
fn link(key: &str, message: &str) {
    check(&BASE.replacen("Mbit/s\"\n", &format!("Mbit/s\"\n{key}"), 1), &[&format!("p:7: {message}")]);
}

/// Checks the message for a key of the file, on line 3.
fn file(key: &str, message: &str) {
    check(&BASE.replacen("\n\n", &format!("\n{key}\n"), 1), &[&format!("p:3: {message}")]);
}

#[test]
fn the_base_is_valid() {
    after("", &[]);
}

#[test]
fn text_that_is_not_toml() {
    let unclosed = ["p:1: invalid basic string, expected `\"`", "p:2: unclosed array table, expected `]]`"];
    check("name = \"lan\n[[link\nx = 1", &unclosed);
    let unquoted = ["p:2: string values must be quoted, expected literal string", "p:4: duplicate key"];
    check("a = 1\r\nb = lan\r\n\r\na = 2", &unquoted);
    check("[[link]]\nname = \"l\"\nrate = [\n", &["p:3: unclosed array, expected `]`"]);
    check("[[link]]\nname = \"l\"\nname = \"m\"\n", &["p:3: duplicate key"]);
}

#[test]
fn tables_of_the_wrong_shape() {
    check("", &["p:1: no [[link]]: a policy needs at least one"]);
    check(
        "\n[link]\nname = \"l\"\n[vif]\n",
        &[
            "p:2: a link is written [[link]], with two brackets on each side",
            "p:4: a vif is written [[vif]], with two brackets on each side",
        ],
    );
    check(
        "link = [\n{ name = \"l\" },\n3]\nvif = 1\n",
        &["p:3: [[link]] must be a table, not 3", "p:4: a vif is written [[vif]], with two brackets on each side"],
    );
    after(
        "[[vif]]\n[[vif]]\n\n",
        &["p:11: name is missing", "p:11: socket is missing", "p:12: name is missing", "p:12: socket is missing"],
    );
    check(
        "[[link]]\n\n[[link]]\nname = \"m\"\n[[vif]]\nname = \"v\"\nsocket = \"s\"\n",
        &["p:1: name is missing", "p:5: link is missing, the links are m"],
    );
}

#[test]
fn unknown_keys() {
    vif(
        "wieght = 1",
        "unknown key `wieght` in [[vif]], did you mean `weight`? (its keys are name, link, tenant, socket, connect, owner, group, mode, packed, xen, queues, weight, min_rate, max_rate, burst, max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst, rx_queue, rx_timeout, mac, addresses, early_ack)",
    );
    vif(
        "zzz = 1",
        "unknown key `zzz` in [[vif]] (its keys are name, link, tenant, socket, connect, owner, group, mode, packed, xen, queues, weight, min_rate, max_rate, burst, max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst, rx_queue, rx_timeout, mac, addresses, early_ack)",
    );
    vif(
        "\"a\\nb\" = 1",
        "unknown key `a\\nb` in [[vif]] (its keys are name, link, tenant, socket, connect, owner, group, mode, packed, xen, queues, weight, min_rate, max_rate, burst, max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst, rx_queue, rx_timeout, mac, addresses, early_ack)",
    );
    link(
        "rates = 1\n",
        "unknown key `rates` in [[link]], did you mean `rate`? (its keys are name, rate, rx_rate, scheduler, prioritize, refill, idle_timeout, isolate, cpu, uplink, xen, rx_pool)",
    );
    link(
        "uplink = { tpa = \"fl0\", tap = \"fl0\" }\n",
        "unknown key `tpa` in uplink, did you mean `tap`? (its keys are tap, card, xdp, wire, delay, queue, backpressure)",
    );
    file(
        "contrl = 1",
        "unknown key `contrl` in the file, did you mean `control`? (its keys are control, metrics, metrics_token, observe, sockets, link, tenant, vif)",
    );
}

#[test]
fn wrong_types() {
    file("metrics = 1", "metrics must be an address and a port, such as \"127.0.0.1:9477\", not 1");
    file("metrics = { a = 1 }", "metrics must be an address and a port, such as \"127.0.0.1:9477\", not a table");
    link("scheduler = true\n", "scheduler must be \"fair\", \"wrr\" or \"netback\", not true");
    link(
        "idle_timeout = 1.5\n",
        "idle_timeout must be a number and a unit (us, ms, s), such as \"100ms\", not \"1.5\"",
    );
    link("idle_timeout = true\n", "idle_timeout must be text in quotes, not true");
    link("isolate = \"no\"\n", "isolate must be true or false, not \"no\"");
    link("cpu = \"1\"\n", "cpu must be a whole number, 0 to 1023, not \"1\"");
    link("uplink = \"fl0\"\n", "uplink must be a table, not \"fl0\"");
    vif("connect = 1", "connect must be true or false, not 1");
    vif("owner = true", "owner must be a name in quotes or a whole number, 0 to 4294967294, not true");
    vif("group = -1", "group must be a name in quotes or 0 to 4294967294, not -1");
    vif("owner = \"\"", "owner must be a name such as \"qemu\", or a number, not \"\"");
    vif("owner = \"a:b\"", "owner must be a name such as \"qemu\", or a number, not \"a:b\"");
    let octal = "mode must be permissions in octal and in quotes, such as \"0660\", not";
    for wrong in ["0o660", "660", "\"66\"", "\"0669\"", "\"1777\"", "\"+660\"", "\"rw-\"", "\"00660\""] {
        vif(&format!("mode = {wrong}"), &format!("{octal} {wrong}"));
    }
    vif(
        "mode = \"0660\"\nconnect = true",
        "mode is for a socket that the backend creates, with connect = true the frontend creates it",
    );
    vif("link = 1", "link must be text in quotes, not 1");
    vif("queues = 1.0", "queues must be a whole number, 1 to 16, not 1.0");
    vif("weight = \"100\"", "weight must be a whole number, 1 to 10000, not \"100\"");
    vif("weight = 1979-05-27", "weight must be a whole number, 1 to 10000, not 1979-05-27");
    vif("weight = [1]", "weight must be a whole number, 1 to 10000, not a list");
    vif(
        "max_rate = 100",
        "max_rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\" or \"none\", not \"100\"",
    );
    vif("max_rate = {}", "max_rate must be text in quotes, not a table");
    vif("mac = 0x525400123456", "mac must be a MAC address such as \"52:54:00:12:34:56\", not 0x525400123456");
    vif("addresses = \"10.0.0.1\"", "addresses must be a list in brackets, not \"10.0.0.1\"");
    after(
        "addresses = [\n  \"10.0.0.1\",\n  1,\n  \"::1\"]",
        &["p:13: addresses must be IP addresses such as \"10.0.0.1\" or \"fd00::1\", without a prefix, not 1"],
    );
}

#[test]
fn wrong_units() {
    vif(
        "max_rate = \"100Mbps\"",
        "max_rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\" or \"none\", not \"100Mbps\"",
    );
    vif("max_rate = \"99999999999999Tbit/s\"", "max_rate is too large: \"99999999999999Tbit/s\"");
    vif("min_rate = \"0.5bit/s\"", "min_rate must be a whole number of bits a second or \"none\", not \"0.5bit/s\"");
    vif("burst = \"64K\"", "burst must be a number and a unit (B, KiB, MiB, GiB), such as \"64KiB\", not \"64K\"");
    link(
        "idle_timeout = \"100\"\n",
        "idle_timeout must be a number and a unit (us, ms, s), such as \"100ms\", not \"100\"",
    );
    link(
        "idle_timeout = \"1min\"\n",
        "idle_timeout must be a number and a unit (us, ms, s), such as \"100ms\", not \"1min\"",
    );
}

#[test]
fn values_out_of_range() {
    link("idle_timeout = \"0ms\"\n", "idle_timeout must be 1us to 60s, not \"0ms\"");
    link("idle_timeout = \"61s\"\n", "idle_timeout must be 1us to 60s, not \"61s\"");
    link("refill = \"999us\"\nscheduler = \"netback\"\n", "refill must be 1ms to 10s, not \"999us\"");
    let near = "link = \"lan\"\n[[link]]\nname = \"near\"\nuplink = { wire = \"lan\", delay = \"11s\" }\n";
    after(near, &["p:14: delay must be 0us to 10s, not \"11s\""]);
    after(&near.replace("delay = \"11s\"", "queue = \"1kB\""), &["p:14: queue must be 1514B to 1GiB, not \"1kB\""]);
    link("cpu = -1\n", "cpu must be 0 to 1023, not -1");
    link("cpu = 1024\n", "cpu must be 0 to 1023, not 1024");
    vif(
        "early_ack = \"on\"",
        "early_ack must be true, false, \"stalled\" (the same as true) or \"always\", not \"on\"",
    );
    vif("early_ack = 1", "early_ack must be true, false, \"stalled\" (the same as true) or \"always\", not 1");
    vif("weight = 0", "weight must be 1 to 10000, not 0");
    vif("weight = 10001", "weight must be 1 to 10000, not 10001");
    vif("weight = 99999999999999999999", "weight must be 1 to 10000, not 99999999999999999999");
    vif("weight = 0x2711", "weight must be 1 to 10000, not 0x2711");
    vif("queues = 0", "queues must be 1 to 16, not 0");
    vif("queues = 17", "queues must be 1 to 16, not 17");
    vif("min_rate = \"0Mbit/s\"", "min_rate must be 1kbit/s to 10Tbit/s or \"none\", not \"0Mbit/s\"");
    vif("max_rate = \"0bit/s\"", "max_rate must be 1kbit/s to 10Tbit/s or \"none\", not \"0bit/s\"");
    vif("max_rate = \"11Tbit/s\"", "max_rate must be 1kbit/s to 10Tbit/s or \"none\", not \"11Tbit/s\"");
    vif("rx_weight = 0", "rx_weight must be 1 to 10000, not 0");
    vif("rx_queue = \"1B\"", "rx_queue must be 1514B to 1GiB, not \"1B\"");
    vif("rx_timeout = \"1us\"", "rx_timeout must be 1ms to 10s, not \"1us\"");
    vif("burst = \"0B\"", "burst must be 1514B to 1GiB, not \"0B\"");
    vif("burst = \"2GiB\"", "burst must be 1514B to 1GiB, not \"2GiB\"");
}

#[test]
fn wrong_names() {
    let long = "n".repeat(33);
    check(
        &BASE.replace("\"web\"\nsocket", &format!("\"{long}\"\nsocket")),
        &[
            "p:9: name must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\"",
        ],
    );
    check(
        &BASE.replace("\"web\"\nsocket", "\"\"\nsocket"),
        &["p:9: name must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"\""],
    );
    check(
        &BASE.replace("\"web\"\nsocket", "\"my web\"\nsocket"),
        &["p:9: name must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"my web\""],
    );
    check(
        &BASE.replace("\"lan\"", "\"länger\""),
        &["p:5: name must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"länger\""],
    );
    link("uplink = { tap = \"\" }\n", "tap must be 1 to 15 letters, digits, \"_\", \".\" or \"-\", not \"\"");
    link("uplink = { xdp = \"a/b\" }\n", "xdp must be 1 to 15 letters, digits, \"_\", \".\" or \"-\", not \"a/b\"");
    link("uplink = { card = \"a/b\" }\n", "card must be 1 to 15 letters, digits, \"_\", \".\" or \"-\", not \"a/b\"");
    link("uplink = { tap = \"..\" }\n", "tap must be the name of a network interface, not \"..\"");
    link(
        "uplink = { tap = \"sixteen-bytes-16\" }\n",
        "tap must be 1 to 15 letters, digits, \"_\", \".\" or \"-\", not \"sixteen-bytes-16\"",
    );
    link("scheduler = \"drr\"\n", "scheduler must be \"fair\", \"wrr\" or \"netback\", not \"drr\"");
}

#[test]
fn wrong_sockets_and_addresses() {
    let long = "s".repeat(108);
    check(
        &BASE.replace("\"/run/c\"", &format!("\"{long}\"")),
        &["p:2: control must be at most 107 bytes, the longest path of a Unix socket, not 108 bytes"],
    );
    check(&BASE.replace("\"/run/c\"", "\"\""), &["p:2: control must be the path of a socket, not \"\""]);
    check(
        &BASE.replace("socket = \"web\"", "socket = \"a\\u0000b\""),
        &["p:10: socket must be the path of a socket, not \"a\\0b\""],
    );
    file(
        "metrics = \"0.0.0.0:9477\"",
        "metrics must be a loopback address, such as \"127.0.0.1:9477\", if there is no metrics_token, not \"0.0.0.0:9477\"",
    );
    file("metrics_token = \"token\"", "metrics_token must be a path that begins with /, not \"token\"");
    file(
        "metrics = \"localhost:9477\"",
        "metrics must be an address and a port, such as \"127.0.0.1:9477\", not \"localhost:9477\"",
    );
    vif(
        "mac = \"01:00:5e:00:00:01\"",
        "mac must be one card's address, neither multicast nor zero, not \"01:00:5e:00:00:01\"",
    );
    vif(
        "mac = \"00:00:00:00:00:00\"",
        "mac must be one card's address, neither multicast nor zero, not \"00:00:00:00:00:00\"",
    );
    vif(
        "mac = \"52-54-00-12-34-56\"",
        "mac must be a MAC address such as \"52:54:00:12:34:56\", not \"52-54-00-12-34-56\"",
    );
    vif(
        "mac = \"52:54:00:12:34:56:78\"",
        "mac must be a MAC address such as \"52:54:00:12:34:56\", not \"52:54:00:12:34:56:78\"",
    );
    vif(
        "mac = \"52:54:00:12:34:+6\"",
        "mac must be a MAC address such as \"52:54:00:12:34:56\", not \"52:54:00:12:34:+6\"",
    );
    vif(
        "addresses = [\"10.0.0.0/8\"]",
        "addresses must be IP addresses such as \"10.0.0.1\" or \"fd00::1\", without a prefix, not \"10.0.0.0/8\"",
    );
    vif("addresses = [\"224.0.0.1\"]", "addresses must be addresses of one host, not \"224.0.0.1\"");
    vif("addresses = [\"::\"]", "addresses must be addresses of one host, not \"::\"");
    vif("addresses = [\"255.255.255.255\"]", "addresses must be addresses of one host, not \"255.255.255.255\"");
}

#[test]
fn keys_of_another_kind_of_link_or_uplink() {
    link("prioritize = true\n", "prioritize belongs to scheduler \"wrr\", this link has \"fair\"");
    link("refill = \"50ms\"\n", "refill belongs to scheduler \"netback\", this link has \"fair\"");
    check(
        &BASE.replace("rate =", "scheduler = \"netback\"\nprioritize = false\nrate ="),
        &["p:7: prioritize belongs to scheduler \"wrr\", this link has \"netback\""],
    );
    link("uplink = {}\n", "uplink must name a tap, a card (card or xdp) or a wire, such as { tap = \"fl0\" }");
    let pairs = [
        "tap = \"fl0\", wire = \"x\"",
        "tap = \"fl0\", card = \"x\"",
        "card = \"fl0\", wire = \"x\"",
        "card = \"fl0\", xdp = \"fl0\"",
    ];
    for two in pairs {
        let only_one = "uplink must be a tap, a card (card or xdp) or a wire, only one of them";
        link(&format!("uplink = {{ {two} }}\n"), only_one);
    }
    link("uplink = { tap = \"fl0\", queue = \"1MiB\" }\n", "queue belongs to a wire, this uplink is a tap");
    link("uplink = { card = \"eth0\", delay = \"1ms\" }\n", "delay belongs to a wire, this uplink is a card");
    link("uplink = { xdp = \"eth0\", queue = \"1MiB\" }\n", "queue belongs to a wire, this uplink is a card");
    check(
        &BASE.replace("rate =", "scheduler = \"wrr\"\nrate =").replace("socket", "min_rate = \"1Mbit/s\"\nsocket"),
        &["p:11: min_rate belongs to scheduler \"fair\", this link has \"wrr\""],
    );
}

#[test]
fn duplicates() {
    after("[[vif]]\nsocket = \"x\"\nname = \"web\"\n", &["p:13: name `web` is taken by another vif"]);
    after("[[vif]]\nname = \"x\"\n\nsocket = \"web\"\n", &["p:14: socket \"web\" is taken by vif `web`"]);
    after(
        "[[vif]]\nname = \"x\"\nxen = \"a\"\n[[vif]]\nname = \"y\"\nxen = \"a/0\"\n",
        &["p:16: card 0 of guest `a` is taken by vif `x`"],
    );
    after(
        "[[vif]]\nname = \"x\"\nxen = \"a/b\"\n",
        &["p:13: xen must be a guest and the number of its card, such as \"web/0\", not \"a/b\""],
    );
    after(
        "[[vif]]\nname = \"x\"\nxen = \"a/1\"\nsocket = \"s\"\n",
        &["p:14: socket belongs to a vhost-user card, this vif is a Xen card"],
    );
    check(
        "[[link]]\nname = \"a\"\nxen = true\n[[link]]\nname = \"b\"\nxen = true\n",
        &["p:6: link `a` already takes Xen's cards, and only one link can"],
    );
    after(
        "[[vif]]\nname = \"x\"\n\nsocket = \"/run/./c\"\n",
        &["p:14: socket \"/run/./c\" is taken by the control socket"],
    );
    after(
        "mac = \"02:00:00:00:00:01\"\n[[vif]]\nname = \"x\"\nsocket = \"x\"\nmac = \"02:00:00:00:00:01\"\n",
        &["p:15: mac is already pinned to vif `web`"],
    );
    check(
        "[[link]]\nname = \"a\"\nuplink.tap = \"fl0\"\n[[link]]\nname = \"a\"\n[link.uplink]\n# tap\ntap = \"fl0\"\n",
        &["p:5: name `a` is taken by another link", "p:8: tap `fl0` is taken by link `a`"],
    );
    check(
        "[[link]]\nname = \"a\"\nuplink.card = \"eth0\"\n[[link]]\nname = \"b\"\nuplink.card = \"eth0\"\n",
        &["p:6: card `eth0` is taken by link `a`"],
    );
    check(
        "[[link]]\nname = \"a\"\nuplink.card = \"eth0\"\n[[link]]\nname = \"b\"\nuplink.xdp = \"eth0\"\n",
        &["p:6: card `eth0` is taken by link `a`"],
    );
}

#[test]
fn missing_links() {
    vif("link = \"lna\"", "no link is named `lna`, did you mean `lan`?");
    vif("link = \"wan\"", "no link is named `wan`, did you mean `lan`?");
    vif("link = \"\"", "link must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"\"");
    check(
        "[[link]]\nname = \"l l\"\nuplink.wire = \"a\"\n[[vif]]\nname = \"v\"\nsocket = \"s\"\nlink = \"l\"\n",
        &["p:2: name must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"l l\""],
    );
    vif("link = \"x y\"", "link must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"x y\"");
    check("link = []\n", &["p:1: no [[link]]: a policy needs at least one"]);
    check("[[vif]]\nname = \"v\"\nsocket = \"s\"\nlink = \"l\"\n", &["p:1: no [[link]]: a policy needs at least one"]);
    after("[[link]]\nname = \"far\"\n", &["p:8: link is missing, the links are lan, far"]);
}

#[test]
fn wires_without_a_valid_far_end() {
    link(
        "uplink = { wire = \"lan\" }\n",
        "the wire of link `lan` leads back to the same link, it must lead to another",
    );
    link("uplink = { wire = \"alb\" }\n", "no link is named `alb`, the links are lan");
    let far = "link = \"lan\"\n[[link]]\nname = \"far\"\nuplink = { tap = \"fl0\" }\n[[link]]\nname = \"near\"\nuplink = {\n  wire = \"far\" }\n";
    after(far, &["p:18: link `far` has an uplink of its own, the far end of a wire must have none"]);
    let two = "link = \"lan\"\n[[link]]\nname = \"a\"\nuplink = { wire = \"lan\" }\n[[link]]\nname = \"b\"\nuplink = { wire = \"lan\" }\n";
    after(two, &["p:17: link `lan` is already the far end of the wire of link `a`"]);
}

#[test]
fn impossible_guarantees() {
    after(
        "max_rate = \"10Mbit/s\"\nmin_rate = \"20Mbit/s\"\n",
        &["p:12: min_rate 20Mbit/s of vif `web` is above its max_rate 10Mbit/s"],
    );
    vif("min_rate = \"101Mbit/s\"\n", "min_rate 101Mbit/s of vif `web` is above the rate 100Mbit/s of link `lan`");
    vif(
        "rx_min_rate = \"101Mbit/s\"\n",
        "rx_min_rate 101Mbit/s of vif `web` is above the rate 100Mbit/s of link `lan`",
    );
    after(
        "rx_min_rate = \"60Mbit/s\"\n[[vif]]\nname = \"x\"\nsocket = \"x\"\nrx_min_rate = \"60Mbit/s\"\n",
        &["p:6: the rx_min_rates on link `lan` add up to 120Mbit/s, above its rate 100Mbit/s"],
    );
    after(
        "rx_max_rate = \"10Mbit/s\"\nrx_min_rate = \"20Mbit/s\"\n",
        &["p:12: rx_min_rate 20Mbit/s of vif `web` is above its rx_max_rate 10Mbit/s"],
    );
    after(
        "min_rate = \"60Mbit/s\"\n[[vif]]\nname = \"x\"\nsocket = \"x\"\nmin_rate = \"60Mbit/s\"\n",
        &["p:6: the min_rates on link `lan` add up to 120Mbit/s, above its rate 100Mbit/s"],
    );
}

#[test]
fn all_mistakes_are_reported_at_once_by_line() {
    let text = "metrics = 1\n[[vif]]\nlink = \"lan\"\nsocket = \"\"\nweight = 0\nqueues = 0\ncolour = 1\n\n[[link]]\nrate = \"1\"\nname = \"lan\"\n";
    check(
        text,
        &[
            "p:1: metrics must be an address and a port, such as \"127.0.0.1:9477\", not 1",
            "p:2: name is missing",
            "p:4: socket must be the path of a socket, not \"\"",
            "p:5: weight must be 1 to 10000, not 0",
            "p:6: queues must be 1 to 16, not 0",
            "p:7: unknown key `colour` in [[vif]] (its keys are name, link, tenant, socket, connect, owner, group, mode, packed, xen, queues, weight, min_rate, max_rate, burst, max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst, rx_queue, rx_timeout, mac, addresses, early_ack)",
            "p:10: rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\" or \"none\", not \"1\"",
        ],
    );
}

#[test]
fn wrong_tenants() {
    let tenants = "[[tenant]]\nname = \"red\"\nmin_rate = \"20Mbit/s\"\n[[tenant]]\nname = \"blue\"\n";
    let vif = |keys: &str| format!("[[vif]]\nname = \"v\"\nsocket = \"s\"\n{keys}\n");
    let link = "[[link]]\nname = \"l\"\nrate = \"100Mbit/s\"\n";
    for (text, problem) in [
        (format!("{link}{tenants}{}", vif("tenant = \"rde\"")), "p:12: no tenant is named `rde`, did you mean `red`?"),
        (
            format!("{link}{tenants}{}", vif("tenant = \"red\"\nmin_rate = \"30Mbit/s\"")),
            "p:6: the min_rates of tenant `red` on link `l` add up to 30Mbit/s, above the tenant's min_rate (20Mbit/s)",
        ),
        (
            format!("{link}{tenants}{}", vif("tenant = \"blue\"\nmin_rate = \"1Mbit/s\"")),
            "p:7: the min_rates of tenant `blue` on link `l` add up to 1Mbit/s, above the tenant's min_rate (none)",
        ),
        (
            format!("{}{tenants}{}", link.replace("100M", "10M"), vif("tenant = \"red\"")),
            "p:3: the min_rates on link `l` add up to 20Mbit/s, above its rate 10Mbit/s",
        ),
        (
            format!(
                "{link}{tenants}rx_min_rate = \"2Mbit/s\"\n{}",
                vif("tenant = \"blue\"\nrx_min_rate = \"3Mbit/s\"")
            ),
            "p:9: the rx_min_rates of tenant `blue` on link `l` add up to 3Mbit/s, above the tenant's rx_min_rate (2Mbit/s)",
        ),
        (
            format!("{link}{tenants}rx_min_rate = \"200Mbit/s\"\n{}", vif("tenant = \"blue\"")),
            "p:3: the rx_min_rates on link `l` add up to 200Mbit/s, above its rate 100Mbit/s",
        ),
        (
            format!("{link}{tenants}rx_wieght = 2\n"),
            "p:9: unknown key `rx_wieght` in [[tenant]], did you mean `rx_weight`? (its keys are name, weight, min_rate, max_rate, burst, max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst, min_rate_on)",
        ),
        (
            format!("{link}{tenants}rx_max_rate = \"2\"\n"),
            "p:9: rx_max_rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\" or \"none\", not \"2\"",
        ),
        (
            format!("{link}scheduler = \"wrr\"\n{tenants}{}", vif("tenant = \"blue\"")),
            "p:13: tenant belongs to scheduler \"fair\", this link has \"wrr\"",
        ),
        (format!("{link}{tenants}[[vif]]\nname = \"red\"\nsocket = \"s\"\n"), "p:10: name `red` is taken by a tenant"),
        (
            format!("{link}scheduler = \"netback\"\n{}", vif("max_frames = 10")),
            "p:8: max_frames belongs to scheduler \"fair\" or \"wrr\", this link has \"netback\"",
        ),
        (
            format!("{link}rx_rate = \"1Mbit/s\"\n{}", vif("rx_min_rate = \"2Mbit/s\"")),
            "p:8: rx_min_rate 2Mbit/s of vif `v` is above the rx_rate 1Mbit/s of link `l`",
        ),
        (format!("{link}{tenants}[[tenant]]\nname = \"red\"\n"), "p:10: name `red` is taken by another tenant"),
        (
            format!("{link}[[tenant]]\nname = \"red\"\nmin_rate = \"2Mbit/s\"\nmax_rate = \"1Mbit/s\"\n"),
            "p:6: min_rate 2Mbit/s of tenant `red` is above its max_rate 1Mbit/s",
        ),
        (
            format!("{link}{tenants}max_rate = \"1Mbit/s\"\nmin_rate_on.l = \"2Mbit/s\"\n"),
            "p:10: min_rate_on.l 2Mbit/s of tenant `blue` is above its max_rate 1Mbit/s",
        ),
        (
            format!("{link}{tenants}min_rate_on = {{ lan = \"2Mbit/s\" }}\n"),
            "p:9: no link is named `lan`, the links are l",
        ),
        (
            format!("{link}{tenants}min_rate_on.l = 2\n"),
            "p:9: min_rate_on.l must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\" or \"none\", not \"2\"",
        ),
        (
            format!("{link}{tenants}min_rate_on = \"2Mbit/s\"\n"),
            "p:9: min_rate_on must be a table (min_rate_on.NAME = ...), not \"2Mbit/s\"",
        ),
        (
            format!("{link}{tenants}min_rate_on.l = \"101Mbit/s\"\n{}", vif("tenant = \"blue\"")),
            "p:3: the min_rates on link `l` add up to 101Mbit/s, above its rate 100Mbit/s",
        ),
        (
            format!("[[link]]\nname = \"m\"\n{link}{tenants}min_rate_on.l = \"1Mbit/s\"\n")
                + &vif("link = \"l\"\ntenant = \"blue\"\nmin_rate = \"2Mbit/s\""),
            "p:9: the min_rates of tenant `blue` on link `l` add up to 2Mbit/s, above the tenant's min_rate (1Mbit/s)",
        ),
    ] {
        assert_eq!(problems(&text), [problem], "{text}");
    }
}

#[test]
fn tables_about_sockets() {
    file("observe = \"/run/o\"", "observe must be a table, not \"/run/o\"");
    file("observe = {}", "socket is missing");
    file("observe = { socket = \"/run/c\" }", "socket \"/run/c\" is taken by the control socket");
    let mode = "mode must be permissions in octal and in quotes, such as \"0660\", not 640";
    file("observe = { socket = \"/run/o\", mode = 640 }", mode);
    file(
        "observe = { socket = \"/run/o\", group = \"\" }",
        "group must be a name such as \"qemu\", or a number, not \"\"",
    );
    file(
        "observe = { socket = \"/run/o\", owner = 7 }",
        "unknown key `owner` in observe (its keys are socket, group, mode)",
    );
    file("sockets = { mode = \"rw\" }", &mode.replace("640", "\"rw\""));
    file("sockets = { owner = true }", "owner must be a name in quotes or a whole number, 0 to 4294967294, not true");
    file("sockets = { user = 7 }", "unknown key `user` in sockets (its keys are owner, group, mode)");
    file(
        "remove = {}",
        "unknown key `remove` in the file (its keys are control, metrics, metrics_token, observe, sockets, link, tenant, vif)",
    );
    let taken = "observe = { socket = \"web\" }\n";
    check(&format!("{taken}{BASE}"), &["p:11: socket \"web\" is taken by the read-only control socket"]);
}
