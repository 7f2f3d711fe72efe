//! The live page in a real browser while guests flood: what it shows is what the backend says.

use crate::browser::Browser;
use crate::guests::{Flood, guest, wait_for};
use crate::workspace::Workspace;
use serde_json::Value;

/// Two guests that flood a link of 100 Mbit/s 3:1, of a tenant each, one that is there to be disabled, and one that may send a frame
/// every 12 s.
const POLICY: &str = r#"control = "DIR/control.sock"
metrics = "127.0.0.1:0"
[[link]]
name = "near"
rate = "100Mbit/s"
uplink = { wire = "far" }
[[link]]
name = "far"
[[tenant]]
name = "red"
weight = 300
[[vif]]
name = "web"
link = "near"
tenant = "red"
socket = "DIR/web.sock"
[[vif]]
name = "batch"
link = "near"
socket = "DIR/batch.sock"
[[vif]]
name = "odd"
link = "near"
socket = "DIR/odd.sock"
[[vif]]
name = "slow"
link = "near"
max_rate = "1kbit/s"
socket = "DIR/slow.sock"
"#;

/// What the page shows of each vif and link, and of which moment.
const SHOWN: &str = r##"
const text = (node) => node.textContent.trim();
const rows = [...document.querySelectorAll("#vifs tr[data-vif]")];
const cells = (row) => Object.fromEntries([...row.querySelectorAll("td")].map((cell) => [cell.dataset.figure, text(cell)]));
return {
  time: document.body.dataset.time ?? null,
  vifs: Object.fromEntries(rows.map((row) => [row.dataset.vif, cells(row)])),
  links: Object.fromEntries([...document.querySelectorAll(".link")].map((card) => [card.dataset.link, text(card)])),
  tenants: [...document.querySelectorAll("#tenants tbody tr")].map(text),
  order: rows.map((row) => row.dataset.vif),
  details: text(document.querySelector("#details")),
  charts: document.querySelectorAll("#details svg polyline, #details svg .cell").length,
  wider: document.documentElement.scrollWidth > innerWidth,
};
"##;

#[test]
fn the_page_shows_what_the_backend_says() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", POLICY);
    let backend = workspace.up();
    let address = backend.metrics.clone().unwrap();
    let snapshot = || -> Value {
        let mut answer = ureq::get(format!("http://{address}/api/v1/snapshot")).call().unwrap();
        answer.body_mut().read_json().unwrap()
    };
    let _floods = [Flood::start(&workspace.path("web.sock"), 1), Flood::start(&workspace.path("batch.sock"), 2)];
    let odd = guest(&workspace.path("odd.sock"));
    odd.memory.set_len(0).unwrap();
    odd.kick(1);

    let _slow = Flood::start(&workspace.path("slow.sock"), 3);

    let browser = Browser::start();
    browser.open(&format!("http://{address}/"));
    let vif = |reading: &Value, name: &str| {
        reading["vifs"].as_array().unwrap().iter().find(|vif| vif["name"] == name).unwrap().clone()
    };
    wait_for("the guests' shares", || {
        let reading = snapshot();
        vif(&reading, "odd")["state"] == "disabled"
            && (vif(&reading, "web")["share"].as_f64().unwrap() - 0.75).abs() < 0.02
    });

    wait_for("a frame that waits for more than a second", || state(&vif(&snapshot(), "slow")).contains("not served"));
    assert!(workspace.ctl("show").out.contains("up, not served for "));
    wait_for("the reason from the doctor", || {
        let found = workspace.run("doctor --seconds 0.1 --json --control DIR/control.sock").out;
        found.contains("vif slow is up, not served for ") && found.contains("its max_rate holds it back")
    });

    // The same moment on the page and from the server.
    let mut pair = None;
    wait_for("the page to show the present snapshot", || {
        let (reading, shown) = (snapshot(), browser.run(SHOWN));
        let same = shown["time"].as_str() == Some(&reading["time"].to_string());
        pair = same.then_some((reading, shown));
        same
    });
    let (reading, shown) = pair.unwrap();
    for vif in reading["vifs"].as_array().unwrap() {
        let row = &shown["vifs"][vif["name"].as_str().unwrap()];
        let text = |key: &str| row[key].as_str().unwrap_or_else(|| panic!("no {key} in {row}")).to_owned();
        let part = |value: &Value| value.as_f64().map_or("-".to_owned(), |part| format!("{part:.3}"));
        assert_eq!((text("share"), text("due")), (part(&vif["share"]), part(&vif["due"])));
        assert_eq!(Value::from(text("link")), vif["link"]);
        assert_eq!(text("state"), state(vif));
        let tenant = vif["tenant"].as_str().unwrap_or_default();
        assert_eq!(text("tenant"), tenant);
        assert_same_rate(&text("sent"), vif["sent_rate"].as_f64().unwrap());
        assert_same_rate(&text("received"), vif["received_rate"].as_f64().unwrap());
        assert_eq!(text("drops/s"), format!("{:.0}", vif["drop_rate"].as_f64().unwrap()));
        assert_eq!(text("p99 <") == "-", vif["wait_p99"].is_null());
    }
    let near = shown["links"]["near"].as_str().unwrap();
    assert!(near.contains("of 100.0Mbit/s") && near.contains("uplink up"), "{near}");
    assert!(shown["tenants"][0].as_str().unwrap().starts_with("rednear"), "{shown}");

    // Sorted, searched, and looked at closely.
    let press = |selector: &str| browser.run(&format!("document.querySelector({selector:?}).click()"));
    // Without `slow`, which sends something in one second of twelve.
    let order = || {
        let mut order: Vec<String> = serde_json::from_value(browser.run(SHOWN)["order"].take()).unwrap();
        order.retain(|name| name != "slow");
        order
    };
    press("#vifs th:nth-child(5) button");
    assert_eq!(order(), ["web", "batch", "odd"]);
    press("#vifs th:nth-child(5) button");
    assert_eq!(order(), ["odd", "batch", "web"]);
    press("tr[data-vif=odd] button");
    let details = browser.run(SHOWN)["details"].as_str().unwrap().to_owned();
    let reason = vif(&reading, "odd")["reason"].as_str().unwrap().to_owned();
    assert!(details.contains(&format!("disabled: {reason}")), "{details}");
    press("tr[data-vif=web] button");
    wait_for("the history of web", || browser.run(SHOWN)["charts"].as_u64().unwrap() >= 4);
    press("#details [data-span=day]");
    let search =
        "const box = document.querySelector('#search'); box.value = 'BAT'; box.dispatchEvent(new Event('input'))";
    browser.run(search);
    assert_eq!(order(), ["batch"]);

    for (width, height) in [(1280, 900), (500, 800)] {
        browser.resize(width, height);
        assert_eq!(browser.run(SHOWN)["wider"], false, "{width}");
    }
    drop(backend);
    wait_for("the page to say that nobody answers", || {
        browser.run("return document.querySelector('#state').className") == "bad"
    });
    let console = browser.console();
    let wrong: Vec<_> =
        console.iter().filter(|message| !message.contains("ERR_CONNECTION") && !message.contains("/api/v1/")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A vif's state as people read it.
fn state(vif: &Value) -> String {
    let (state, unserved) = (vif["state"].as_str().unwrap(), vif["unserved"].as_u64().unwrap());
    if unserved < 1_000_000_000 {
        return state.to_owned();
    }
    format!("{state}, not served for {:.1}s", unserved as f64 / 1e9)
}

/// `75.0Mbit/s` and 75,012,345 are the same.
#[track_caller]
fn assert_same_rate(shown: &str, rate: f64) {
    let digits = shown.find(|letter: char| letter.is_alphabetic()).unwrap();
    let unit = match &shown[digits..] {
        "bit/s" => 1.0,
        "kbit/s" => 1e3,
        "Mbit/s" => 1e6,
        "Gbit/s" => 1e9,
        unit => panic!("{unit}"),
    };
    let step = if unit > 1.0 { 0.1 } else { 1.0 };
    let shown: f64 = shown[..digits].parse().unwrap();
    assert!((shown * unit - rate).abs() <= 0.51 * step * unit, "{shown} {unit} {rate}");
}
