use super::{executed, ordered, parse};
use crate::*;
use fairlane_core::ack::Mode;
use fairlane_core::receive::Receive;
use fairlane_core::sched::Share;

const TWO: &str = r#"
    [[link]]
    name = "lan"
    rate = "100Mbit/s"
    [[link]]
    name = "old"
    scheduler = "wrr"
    [[vif]]
    name = "web"
    link = "lan"
    socket = "web"
    min_rate = "60Mbit/s"
    [[vif]]
    name = "db"
    link = "lan"
    socket = "db"
    max_rate = "1Gbit/s"
    [[vif]]
    name = "box"
    link = "old"
    socket = "box"
"#;

fn set(policy: &mut Policy, target: &str, key: &str, value: &str) -> Result<(), String> {
    let setting = Setting::parse(key, value).map_err(|error| error.to_string())?;
    policy.apply(target, setting).map_err(|error| error.to_string())
}

/// A setting is refused with this message, and changes nothing.
fn assert_refused(policy: &mut Policy, (target, key, value): (&str, &str, &str), message: &str) {
    let before = policy.clone();
    assert_eq!(set(policy, target, key, value), Err(message.to_owned()), "{target} {key}={value}");
    assert_eq!(*policy, before);
}

#[test]
fn a_setting_changes_its_key() {
    let mut policy = parse(TWO);
    for (target, key, value) in [
        ("web", "weight", "300"),
        ("web", "min_rate", "20Mbit/s"),
        ("web", "max_rate", "50Mbit/s"),
        ("web", "burst", "128KiB"),
        ("web", "max_frames", "20000"),
        ("web", "rx_max_frames", "10000"),
        ("web", "rx_frame_burst", "5"),
        ("web", "rx_weight", "20"),
        ("web", "rx_min_rate", "10Mbit/s"),
        ("web", "rx_max_rate", "1Gbit/s"),
        ("web", "rx_queue", "1MiB"),
        ("web", "rx_timeout", "90ms"),
        ("web", "early_ack", "stalled"),
        ("lan", "idle_timeout", "20ms"),
        ("lan", "isolate", "true"),
        ("lan", "rx_pool", "1GiB"),
        ("lan", "rate", "1Gbit/s"),
        ("lan", "rx_rate", "900Mbit/s"),
        ("old", "prioritize", "false"),
    ] {
        set(&mut policy, target, key, value).unwrap();
    }
    let web = policy.vifs[0].shares.tx;
    assert_eq!((web.weight, web.min_rate, web.max_rate, web.burst), (300, 20_000_000, Some(50_000_000), 131_072));
    let (max_rate, burst) = (Some(1_000_000_000), 1_250_000);
    assert_eq!((web.max_frames, web.frame_burst), (Some(20_000), 200));
    let (max_frames, frame_burst) = (Some(10_000), 5);
    let share = Share { weight: 20, min_rate: 10_000_000, max_rate, burst, max_frames, frame_burst };
    assert_eq!(policy.vifs[0].receive(), Receive { share, queue: 1 << 20, timeout: Nanos::from_millis(90) });
    set(&mut policy, "web", "rx_burst", "64KiB").unwrap();
    assert_eq!(policy.vifs[0].receive().share.burst, 64 << 10);
    assert_eq!(policy.vifs[0].early_ack, Mode::Auto);
    set(&mut policy, "web", "early_ack", "always").unwrap();
    assert_eq!(policy.vifs[0].early_ack, Mode::Always);
    set(&mut policy, "web", "early_ack", "false").unwrap();
    assert_eq!(policy.vifs[0].early_ack, Mode::Off);
    let lan = policy.link("lan").unwrap();
    assert_eq!((lan.rx_pool, lan.rx_rate), (1 << 30, Some(900_000_000)));
    assert_eq!((lan.idle_timeout, lan.isolate, lan.rate), (Nanos::from_millis(20), true, Some(1_000_000_000)));
    assert_eq!(policy.link("old").unwrap().scheduler, SchedulerKind::Wrr { prioritize: false });
    set(&mut policy, "old", "scheduler", "wrr").unwrap();
    assert_eq!(policy.link("old").unwrap().scheduler, SchedulerKind::Wrr { prioritize: false });
    set(&mut policy, "old", "scheduler", "netback").unwrap();
    set(&mut policy, "old", "refill", "10ms").unwrap();
    assert_eq!(policy.link("old").unwrap().scheduler, SchedulerKind::Netback { refill: Nanos::from_millis(10) });
    set(&mut policy, "web", "min_rate", "none").unwrap();
    set(&mut policy, "web", "max_rate", "none").unwrap();
    set(&mut policy, "lan", "rate", "none").unwrap();
    assert_eq!((policy.vifs[0].shares.tx.min_rate, policy.vifs[0].shares.tx.max_rate), (0, None));
    assert_eq!(policy.link("lan").unwrap().rate, None);
}

#[test]
fn a_default_burst_follows_max_rate_and_a_configured_one_does_not() {
    let mut policy = parse(TWO);
    assert_eq!(policy.vifs[1].shares.tx.burst, 1_250_000);
    set(&mut policy, "db", "max_rate", "2Gbit/s").unwrap();
    assert_eq!(policy.vifs[1].shares.tx.burst, 2_500_000);
    set(&mut policy, "db", "burst", "100KiB").unwrap();
    set(&mut policy, "db", "max_rate", "1Gbit/s").unwrap();
    assert_eq!(policy.vifs[1].shares.tx.burst, 102_400);
}

#[test]
fn a_wrong_setting_gives_the_reason_and_changes_nothing() {
    let mut policy = parse(TWO);
    for (target, key, value, message) in [
        ("web", "weight", "0", "weight must be 1 to 10000, not 0"),
        ("web", "weight", "heavy", "weight must be a whole number, 1 to 10000, not \"heavy\""),
        (
            "web",
            "max_rate",
            "100",
            "max_rate must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\" or \"none\", \
             not \"100\"",
        ),
        ("web", "max_rate", "0Mbit/s", "max_rate must be 1kbit/s to 10Tbit/s or \"none\", not \"0Mbit/s\""),
        ("web", "max_rate", "50Mbit/s", "min_rate 60Mbit/s of vif `web` is above its max_rate 50Mbit/s"),
        ("db", "min_rate", "50Mbit/s", "the min_rates on link `lan` add up to 110Mbit/s, above its rate 100Mbit/s"),
        ("web", "min_rate", "200Mbit/s", "min_rate 200Mbit/s of vif `web` is above the rate 100Mbit/s of link `lan`"),
        ("lan", "rate", "50Mbit/s", "min_rate 60Mbit/s of vif `web` is above the rate 50Mbit/s of link `lan`"),
        ("box", "min_rate", "1Mbit/s", "min_rate belongs to scheduler \"fair\", this link has \"wrr\""),
        ("lan", "scheduler", "wrr", "min_rate belongs to scheduler \"fair\", this link has \"wrr\""),
        ("lan", "prioritize", "true", "prioritize belongs to scheduler \"wrr\", this link has \"fair\""),
        ("old", "refill", "1ms", "refill belongs to scheduler \"netback\", this link has \"wrr\""),
        ("old", "prioritize", "yes", "prioritize must be true or false, not \"yes\""),
        ("lan", "idle_timeout", "0ms", "idle_timeout must be 1us to 60s, not \"0ms\""),
        ("box", "max_frames", "0", "max_frames must be 1 to 1000000000 or \"none\", not 0"),
        ("web", "frame_burst", "none", "frame_burst must be a whole number, 1 to 1000000, not \"none\""),
        ("web", "tenant", "red", "no tenant is named `red`, there is none"),
        ("wbe", "weight", "1", "no vif is named `wbe`, did you mean `web`?"),
        ("lan", "weight", "1", "no vif is named `lan`, the vifs are web, db, box"),
        ("web", "idle_timeout", "1ms", "no link is named `web`, the links are lan, old"),
        (
            "web",
            "wieght",
            "1",
            "`wieght` cannot be set, did you mean `weight`? (of a vif or tenant: weight, min_rate, max_rate, burst, \
             max_frames, frame_burst, rx_weight, rx_min_rate, rx_max_rate, rx_burst, rx_max_frames, rx_frame_burst; \
             of a tenant: min_rate_on.LINK; of a vif: rx_queue, rx_timeout, early_ack, tenant; \
             of a link: rate, rx_rate, scheduler, prioritize, refill, idle_timeout, isolate, rx_pool)",
        ),
    ] {
        assert_refused(&mut policy, (target, key, value), message);
    }
}

#[test]
fn found_cards_have_the_share_that_is_in_xenstore() {
    let terms = |weight: Option<&str>, min_rate: Option<&str>| Terms {
        weight: weight.map(str::to_owned),
        min_rate: min_rate.map(str::to_owned),
    };
    let text = TWO.replacen("name = \"lan\"", "name = \"lan\"\nxen = true", 1)
        + "[[vif]]\nname = \"own\"\nlink = \"lan\"\nxen = \"mail\"\n";
    let mut policy = parse(&text);
    let file = policy.clone();
    assert!(policy.add_found_card("shop", 1, &terms(Some("30"), Some("5Mbit/s"))).is_empty());
    let vif = policy.vifs.last().unwrap().clone();
    let share = |vif: &Vif| (vif.shares.tx.weight, vif.shares.tx.min_rate);
    assert_eq!((vif.name.as_str(), vif.link.as_str(), share(&vif)), ("shop/1", "lan", (30, 5_000_000)));
    set(&mut policy, "shop/1", "weight", "7").unwrap();
    // A wrong or removed value has its default; a wrong one is reported.
    let reported = policy.add_found_card("shop", 1, &terms(None, Some("90Mbit/s")));
    assert_eq!(
        reported,
        ["shop/1 in xenstore: the min_rates on link `lan` add up to 150Mbit/s, above its rate 100Mbit/s"]
    );
    assert_eq!(share(policy.vifs.last().unwrap()), (100, 0));
    let reported = policy.add_found_card("shop", 1, &terms(Some("0"), None));
    assert_eq!(reported, ["shop/1 in xenstore: weight must be 1 to 10000, not 0"]);
    // For a card in the file only the file counts, and without a link that takes Xen's cards none is added.
    assert!(policy.add_found_card("mail", 0, &terms(Some("30"), None)).is_empty());
    policy.remove_found_card("mail", 0);
    policy.remove_found_card("shop", 1);
    assert_eq!(policy, file);
    let mut closed = parse(TWO);
    assert!(closed.add_found_card("shop", 1, &Terms::default()).is_empty());
    assert_eq!(closed, parse(TWO));
}

#[test]
fn a_reload_lists_its_changes() {
    let old = parse(TWO);
    let newer = TWO
        .replace("min_rate = \"60Mbit/s\"", "mac = \"02:00:00:00:00:01\"\nearly_ack = true\n min_rate = \"70Mbit/s\"")
        .replace("scheduler = \"wrr\"", "scheduler = \"netback\"\nidle_timeout = \"1s\"\nisolate = true")
        .replace("name = \"box\"", "name = \"crate\"")
        .replace("socket = \"db\"", "socket = \"db2\"");
    let newer = parse(&newer);
    let changes = old.changes(&newer).unwrap();
    let [web, db, crate_] = &newer.vifs[..] else { panic!("{newer:?}") };
    let expected = vec![
        Change::RemoveVif { vif: "db".into() },
        Change::RemoveVif { vif: "box".into() },
        Change::Scheduler { link: "old".into(), scheduler: SchedulerKind::Netback { refill: Nanos::from_millis(50) } },
        Change::IdleTimeout { link: "old".into(), idle_timeout: Nanos::from_millis(1000) },
        Change::Isolate { link: "old".into(), isolate: true },
        Change::Share { vif: "web".into(), share: web.shares.tx, receive: web.receive() },
        Change::AntiSpoofing { vif: "web".into(), mac: web.mac, addresses: Vec::new() },
        Change::EarlyAck { vif: "web".into(), mode: Mode::Auto },
        Change::AddVif(db.clone()),
        Change::AddVif(crate_.clone()),
    ];
    assert_eq!(changes, expected);
    assert_eq!(ordered(executed(&old, &newer, changes)), ordered(newer));
}

#[test]
fn every_difference_that_needs_a_restart_is_reported() {
    let old = parse(TWO);
    let newer = r#"
        control = "/tmp/control"
        metrics = "127.0.0.1:1"
        [[link]]
        name = "lan"
        cpu = 1
        xen = true
        uplink = { wire = "far" }
        [[link]]
        name = "far"
    "#;
    let reported: Vec<String> = old.changes(&parse(newer)).unwrap_err().iter().map(ToString::to_string).collect();
    let expected = [
        "control cannot change from /run/fairlane/control.sock to /tmp/control while running, restart to change it",
        "metrics cannot change from none to 127.0.0.1:1 while running, restart to change it",
        "the uplink of link `lan` cannot change from none to a wire to `far` (delay 0us, queue 256KiB, backpressure true) \
         while running, restart to change it",
        "xen of link `lan` cannot change from false to true while running, restart to change it",
        "cpu of link `lan` cannot change from none to 1 while running, restart to change it",
        "link `far` has a wire or takes Xen's cards: it cannot be added while running, restart to change it",
    ];
    assert_eq!(reported, expected);
    let back: Vec<String> = parse(newer).changes(&old).unwrap_err().iter().map(ToString::to_string).collect();
    let far = "link `far` has a wire or takes Xen's cards: it cannot be removed while running, restart to change it";
    assert_eq!(back.last().unwrap(), far);
}

/// Two links, two vifs of tenant `red` on the first, and one without a tenant on the second.
const TENANTS: &str = r#"
    [[link]]
    name = "lan"
    rate = "100Mbit/s"
    [[link]]
    name = "old"
    [[tenant]]
    name = "red"
    min_rate = "20Mbit/s"
    [[tenant]]
    name = "blue"
    [[vif]]
    name = "web"
    link = "lan"
    socket = "web"
    min_rate = "10Mbit/s"
    tenant = "red"
    [[vif]]
    name = "db"
    link = "lan"
    socket = "db"
    tenant = "red"
    [[vif]]
    name = "box"
    link = "old"
    socket = "box"
"#;

#[test]
fn tenants_change_without_a_new_scheduler() {
    let old = parse(TENANTS);
    assert_eq!(old.tenant_of(&old.vifs[0]), Some(&old.tenants[0]));
    let changes = |from: &str, to: &str| {
        let newer = parse(&TENANTS.replacen(from, to, 1));
        (old.changes(&newer).unwrap(), newer)
    };
    for (from, to) in [
        ("20Mbit", "30Mbit"),
        ("name = \"red\"", "name = \"red\"\nrx_weight = 7"),
        ("name = \"red\"", "name = \"red\"\nmin_rate_on.lan = \"30Mbit/s\""),
    ] {
        let (found, newer) = changes(from, to);
        assert_eq!(found, [Change::Tenant { link: "lan".into(), tenant: newer.tenants[0].clone() }]);
    }
    let (found, newer) = changes("socket = \"db\"\n    tenant = \"red\"", "socket = \"db\"\n    tenant = \"blue\"");
    assert_eq!(found, [Change::Member { vif: "db".into(), tenant: Some(newer.tenants[1].clone()) }]);
    // A link's first tenant needs the scheduler that knows tenants.
    let (found, newer) = changes("socket = \"box\"", "socket = \"box\"\n    tenant = \"red\"");
    let red = Some(newer.tenants[0].clone());
    let scheduler = Change::Scheduler { link: "old".into(), scheduler: SchedulerKind::Fair };
    assert_eq!(found, [scheduler, Change::Member { vif: "box".into(), tenant: red }]);
    assert_eq!(old.changes(&old), Ok(Vec::new()));
}

#[test]
fn a_tenant_is_guaranteed_its_own_rate_and_not_its_vifs() {
    let mut policy = parse(TENANTS);
    let guaranteed = |policy: &Policy| [0, 1].map(|link| policy.guaranteed(&policy.links[link], Direction::Tx));
    // Tenant `blue` has no vifs.
    assert_eq!(guaranteed(&policy), [20_000_000, 0]);
    set(&mut policy, "box", "min_rate", "3Mbit/s").unwrap();
    assert_eq!(guaranteed(&policy), [20_000_000, 3_000_000]);
    // On some links it may be another, until it is the same on each.
    set(&mut policy, "box", "tenant", "red").unwrap();
    assert_eq!(guaranteed(&policy), [20_000_000, 20_000_000]);
    set(&mut policy, "red", "min_rate_on.old", "4Mbit/s").unwrap();
    assert_eq!(guaranteed(&policy), [20_000_000, 4_000_000]);
    set(&mut policy, "red", "min_rate_on.lan", "none").unwrap_err();
    set(&mut policy, "red", "min_rate", "15Mbit/s").unwrap();
    assert_eq!(guaranteed(&policy), [15_000_000, 15_000_000]);
}

#[test]
fn a_setting_of_a_tenant_has_the_rules_of_a_file() {
    let mut policy = parse(TENANTS);
    set(&mut policy, "red", "weight", "300").unwrap();
    assert_eq!((policy.tenants[0].shares.tx.weight, policy.tenants[0].shares.rx.weight), (300, 300));
    set(&mut policy, "red", "rx_weight", "7").unwrap();
    set(&mut policy, "red", "weight", "9").unwrap();
    assert_eq!((policy.tenants[0].shares.tx.weight, policy.tenants[0].shares.rx.weight), (9, 7));
    set(&mut policy, "red", "max_frames", "1000").unwrap();
    assert_eq!(policy.tenants[0].shares.tx.max_frames, Some(1_000));
    set(&mut policy, "box", "tenant", "blue").unwrap();
    assert_eq!(policy.vifs[2].tenant.as_deref(), Some("blue"));
    set(&mut policy, "box", "tenant", "none").unwrap();
    assert_eq!(policy.vifs[2].tenant, None);
    for (target, key, value, message) in [
        ("rde", "weight", "1", "no vif or tenant is named `rde`, did you mean `red`?"),
        ("zzz", "weight", "1", "no vif or tenant is named `zzz`, the vifs and tenants are web, db, box, red, blue"),
        ("red", "rx_queue", "1MiB", "no vif is named `red`, the vifs are web, db, box"),
        ("db", "tenant", "bleu", "no tenant is named `bleu`, did you mean `blue`?"),
        (
            "red",
            "min_rate",
            "5Mbit/s",
            "the min_rates of tenant `red` on link `lan` add up to 10Mbit/s, above the tenant's min_rate (5Mbit/s)",
        ),
        (
            "red",
            "min_rate_on.lan",
            "none",
            "the min_rates of tenant `red` on link `lan` add up to 10Mbit/s, above the tenant's min_rate (none)",
        ),
        ("red", "min_rate_on.lna", "1Mbit/s", "no link is named `lna`, did you mean `lan`?"),
        ("web", "min_rate_on.lan", "1Mbit/s", "no tenant is named `web`, the tenants are red, blue"),
        (
            "web",
            "tenant",
            "blue",
            "the min_rates of tenant `blue` on link `lan` add up to 10Mbit/s, above the tenant's min_rate (none)",
        ),
    ] {
        assert_refused(&mut policy, (target, key, value), message);
    }
}
