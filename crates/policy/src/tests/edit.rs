//! Parts that are added and removed while a policy runs.

use super::parse;
use crate::*;

const LAN: &str = "[[link]]\nname = \"lan\"\nrate = \"1Gbit/s\"\n";

fn settings(keys: &str) -> Vec<(String, String)> {
    let pair = |text: &str| text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap();
    keys.split_whitespace().map(pair).collect()
}

/// The policy after a part is added.
fn with(kind: Kind, name: &str, keys: &str) -> Result<Policy, String> {
    let mut policy = parse(LAN);
    policy.add(kind, name, &settings(keys), false).map(|()| policy).map_err(|error| error.to_string())
}

#[test]
fn values_need_no_quotes() {
    let keys = "socket=/run/web.sock mode=0660 group=64055 owner=libvirt-qemu addresses=10.0.0.1,fd00::1 weight=30 \
                max_rate=50Mbit/s rx_max_rate=none mac=52:54:00:12:34:56 connect=false early_ack=always rx_queue=64KiB";
    let text = "[[vif]]\nname = \"web\"\nsocket = \"/run/web.sock\"\nmode = \"0660\"\ngroup = 64055\nowner = \"libvirt-qemu\"\n\
                addresses = [\"10.0.0.1\", \"fd00::1\"]\nweight = 30\nmax_rate = \"50Mbit/s\"\nmac = \"52:54:00:12:34:56\"\n\
                early_ack = \"always\"\nrx_queue = \"64KiB\"\n";
    assert_eq!(with(Kind::Vif, "web", keys).unwrap(), parse(&format!("{LAN}{text}")));
    // Text in the form of a list or a table is one.
    assert_eq!(
        with(Kind::Vif, "web", "socket=/a addresses=[\"10.0.0.1\"]").unwrap().vifs[0].addresses,
        ["10.0.0.1".parse::<IpAddr>().unwrap()]
    );
    let wired = with(Kind::Link, "near", "rate=1Mbit/s uplink.wire=lan uplink.delay=2ms isolate=true cpu=3").unwrap();
    let text = "[[link]]\nname = \"near\"\nrate = \"1Mbit/s\"\nuplink = { wire = \"lan\", delay = \"2ms\" }\nisolate = true\ncpu = 3\n";
    assert_eq!(wired, parse(&format!("{LAN}{text}")));
    assert_eq!(with(Kind::Link, "near", "uplink={wire=\"lan\"}").unwrap().links.len(), 2);
    assert_eq!(with(Kind::Tenant, "red", "weight=7").unwrap().tenants[0].shares.rx.weight, 7);
}

#[test]
fn names_may_look_like_numbers() {
    let mut policy = parse(LAN);
    policy.add(Kind::Link, "12", &settings("uplink.tap=7"), false).unwrap();
    policy.add(Kind::Link, "true", &settings("uplink.wire=1e3"), false).unwrap_err();
    policy.add(Kind::Link, "1e3", &[], false).unwrap();
    policy.add(Kind::Link, "true", &settings("uplink.wire=1e3"), false).unwrap();
    policy.add(Kind::Tenant, "0x7", &settings("min_rate_on.12=5Mbit/s"), false).unwrap();
    policy.add(Kind::Tenant, "8.5", &[], false).unwrap();
    policy.add(Kind::Vif, "9", &settings("link=12 tenant=0x7 socket=9"), false).unwrap();
    policy.add(Kind::Vif, "10", &settings("link=true xen=12"), false).unwrap();
    policy.apply("9", Setting::parse("tenant", "8.5").unwrap()).unwrap();
    policy.apply("8.5", Setting::parse("min_rate_on.1e3", "2Mbit/s").unwrap()).unwrap();
    assert_eq!((policy.vifs[0].link.as_str(), policy.vifs[0].tenant.as_deref()), ("12", Some("8.5")));
    assert_eq!(policy.vifs[1].card, Card::Xen { guest: "12".to_owned(), device: 0 });
    // As names in quotes in what is saved.
    let files = Files::new(File::new("p", LAN), vec![File::new("saved.toml", policy.saved(&parse(LAN)))]);
    let loaded = files.load(&Files::default()).unwrap();
    assert_eq!((loaded.problems, loaded.policy), (vec![], policy));
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    for (kind, name, keys, sentence) in [
        (Kind::Vif, "web", "weight=0", "socket is missing; weight must be 1 to 10000, not 0"),
        (Kind::Vif, "web", "socket=/a link=lna", "no link is named `lna`, did you mean `lan`?"),
        (Kind::Vif, "web", "socket=/a socket=/b", "socket is given twice"),
        (Kind::Vif, "web", "socket=/a name=b", "name is given twice"),
        (Kind::Vif, "web", "socket.a=/a socket=/b", "socket is given twice"),
        (
            Kind::Vif,
            "web",
            "socket=/a min_rate=2Gbit/s",
            "min_rate 2Gbit/s of vif `web` is above the rate 1Gbit/s of link `lan`",
        ),
        (Kind::Tenant, "r/d", "", "name must be 1 to 32 letters, digits, \"_\", \".\" or \"-\", not \"r/d\""),
        (Kind::Link, "lan", "", "name `lan` is taken by another link"),
    ] {
        assert_eq!(with(kind, name, keys).unwrap_err(), sentence);
    }
    let unknown = with(Kind::Vif, "web", "socket=/a wieght=3").unwrap_err();
    assert!(unknown.starts_with("unknown key `wieght` in a vif, did you mean `weight`?"), "{unknown}");
    // No key and no value is text of a file.
    let two = [("socket".to_owned(), "/a\"\n[[vif]]\nname = \"b".to_owned())];
    let mut policy = parse(LAN);
    policy.add(Kind::Vif, "web", &two, false).unwrap();
    assert_eq!(policy.vifs.len(), 1);
    policy.add(Kind::Vif, "db", &[("socket\n[[vif]]".to_owned(), "/b".to_owned())], false).unwrap_err();
}

#[test]
fn a_part_replaces_the_one_of_its_name_in_its_place() {
    let mut policy = with(Kind::Vif, "web", "socket=/web").unwrap();
    policy.add(Kind::Vif, "db", &settings("socket=/db"), true).unwrap();
    policy.add(Kind::Vif, "web", &settings("socket=/web weight=7"), true).unwrap();
    let shown: Vec<_> = policy.vifs.iter().map(|vif| (vif.name.as_str(), vif.shares.tx.weight)).collect();
    assert_eq!(shown, [("web", 7), ("db", 100)]);
    let taken = policy.add(Kind::Vif, "web", &settings("socket=/other"), false).unwrap_err();
    assert_eq!(taken.to_string(), "name `web` is taken by another vif");
}

#[test]
fn what_others_need_stays() {
    let mut policy = with(Kind::Tenant, "red", "").unwrap();
    for vif in ["a", "b"] {
        policy.add(Kind::Vif, vif, &settings(&format!("socket=/{vif} tenant=red")), false).unwrap();
    }
    policy.add(Kind::Link, "near", &settings("uplink.wire=lan"), false).unwrap();
    let mut refused = |kind, name: &str| policy.remove(kind, name).unwrap_err().to_string();
    assert_eq!(refused(Kind::Tenant, "red"), "tenant `red` still has vifs (a, b): remove them first");
    assert_eq!(refused(Kind::Link, "lan"), "link `lan` still has vifs (a, b): remove them first");
    assert_eq!(refused(Kind::Vif, "c"), "no vif is named `c`, the vifs are a, b");
    assert_eq!(refused(Kind::Link, "naer"), "no link is named `naer`, did you mean `near`?");
    policy.remove(Kind::Vif, "a").unwrap();
    policy.remove(Kind::Vif, "b").unwrap();
    let far = policy.remove(Kind::Link, "lan").unwrap_err().to_string();
    assert_eq!(far, "link `lan` is the far end of the wire of link `near`");
    policy.remove(Kind::Tenant, "red").unwrap();
    policy.remove(Kind::Link, "near").unwrap();
    assert_eq!(policy, parse(LAN));
    assert_eq!(policy.remove(Kind::Link, "lan").unwrap_err().to_string(), "no [[link]]: a policy needs at least one");
    policy.add_found_card("dom", 0, &Terms::default());
    assert!(policy.remove(Kind::Vif, "dom/0").unwrap_err().to_string().starts_with("no vif is named"));
}

/// What was added stays when newer files are loaded, unless these have it; what does not fit is named.
#[test]
fn what_was_added_outlives_newer_files() {
    let last = parse(LAN);
    let mut running = last.clone();
    running.add(Kind::Link, "dmz", &[], false).unwrap();
    running.add(Kind::Tenant, "red", &settings("min_rate=400Mbit/s"), false).unwrap();
    running
        .add(Kind::Vif, "web", &settings("link=lan socket=/web tenant=red weight=3 min_rate=300Mbit/s"), false)
        .unwrap();
    let mut newer = parse(&LAN.replace("1Gbit/s", "500Mbit/s"));
    assert_eq!(newer.keep_added(&running, &last), None);
    assert_eq!((newer.links.len(), newer.tenants.len(), newer.vifs.len()), (2, 1, 1));

    let mut newer = parse(&format!("{LAN}[[vif]]\nname = \"web\"\nsocket = \"/web\"\n"));
    assert_eq!(newer.keep_added(&running, &last), None);
    assert_eq!(newer.vifs[0].shares.tx.weight, 100);

    // What was guaranteed on a link that is gone is no reason to refuse anything.
    running.apply("red", Setting::parse("min_rate_on.dmz", "1Mbit/s").unwrap()).unwrap();
    let mut without = running.clone();
    without.remove(Kind::Link, "dmz").unwrap();
    assert_eq!(without.tenants[0].min_rate_on, [].into());
    let was_in_files = Policy { links: running.links.clone(), ..last.clone() };
    let mut newer = parse(LAN);
    assert_eq!(newer.keep_added(&running, &was_in_files), None);
    assert_eq!(newer.tenants[0].min_rate_on, [].into());

    let mut newer = parse(&LAN.replace("1Gbit/s", "200Mbit/s"));
    let (kind, name, why) = newer.keep_added(&running, &last).unwrap();
    assert_eq!((kind, name.as_str()), (Kind::Vif, "web"));
    assert!(why.to_string().contains("is above the rate 200Mbit/s of link `lan`"), "{why}");
}
