use super::{EXAMPLE, parse, problems, written};
use crate::*;
use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::sched::Share;

/// The share of this weight of a vif without other keys.
fn default_share(weight: u32) -> Share {
    Share { burst: 65_536, frame_burst: 64, ..Share::of_weight(weight) }
}

#[test]
fn the_example_is_valid() {
    let policy = parse(EXAMPLE);
    assert_eq!(policy.metrics, Some("127.0.0.1:9477".parse().unwrap()));
    let [lan, near, far] = &policy.links[..] else { panic!("{:?}", policy.links) };
    assert_eq!((lan.rate, lan.scheduler), (Some(1_000_000_000), SchedulerKind::Fair));
    assert_eq!(lan.rx_rate, Some(950_000_000));
    assert_eq!(policy.vifs[1].tenant.as_deref(), Some("red"));
    assert_eq!(lan.uplink, Uplink::Tap { name: "fl0".into() });
    assert_eq!(near.scheduler, SchedulerKind::Wrr { prioritize: true });
    let (delay, queue) = (Nanos::from_millis(1), 256 << 10);
    assert_eq!(near.uplink, Uplink::Wire { to: "far".into(), delay, queue, backpressure: true });
    assert_eq!(far.scheduler, SchedulerKind::Netback { refill: Nanos::from_millis(50) });
    let web = &policy.vifs[0];
    let max_rate = Some(800_000_000);
    let (max_frames, frame_burst) = (Some(200_000), 2_000);
    let share = Share { weight: 200, min_rate: 200_000_000, max_rate, burst: 1 << 20, max_frames, frame_burst };
    assert_eq!(web.shares.tx, share);
    assert_eq!(web.mac, Some(Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56])));
    assert_eq!(web.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    assert_eq!(parse(&written(&policy)), policy);
}

/// Removing the "#" before a default in the example must not change the policy.
#[test]
fn the_defaults_that_the_example_shows_are_the_defaults() {
    let shown = [
        "scheduler = \"fair\"",
        "idle_timeout = \"100ms\"",
        "isolate = false",
        "rx_pool = \"64MiB\"",
        "xen = false",
        "rx_queue = \"4MiB\"",
        "rx_timeout = \"500ms\"",
        "connect = false",
        "queues = 1",
        "frame_burst = 2000",
    ];
    let mut text = EXAMPLE.to_owned();
    for key in shown {
        assert_eq!(text.matches(&format!("\n# {key}\n")).count(), 1, "{key}");
        text = text.replace(&format!("\n# {key}\n"), &format!("\n{key}\n"));
    }
    assert_eq!(parse(&text), parse(EXAMPLE));
}

#[test]
fn a_tenant_receives_by_its_weight_unless_another_is_given() {
    let tenant = |keys: &str| {
        let text = format!("[[link]]\nname = \"l\"\n[[tenant]]\nname = \"red\"\nweight = 30\n{keys}\n");
        parse(&text).tenants[0].clone()
    };
    let red = tenant("min_rate = \"1Mbit/s\"");
    assert_eq!(red.shares.tx, Share { min_rate: 1_000_000, ..default_share(30) });
    assert_eq!(red.shares.rx, default_share(30));
    let red = tenant("rx_weight = 7\nrx_min_rate = \"2Mbit/s\"\nrx_max_rate = \"1Gbit/s\"");
    let rx = Share { min_rate: 2_000_000, max_rate: Some(1_000_000_000), burst: 1_250_000, ..default_share(7) };
    assert_eq!(red.shares.rx, rx);
    assert_eq!(tenant("rx_burst = \"1MiB\"").shares.rx.burst, 1 << 20);
    let red = tenant("max_frames = 50000\nrx_max_frames = 100\nrx_frame_burst = 7");
    assert_eq!((red.shares.tx.max_frames, red.shares.tx.frame_burst), (Some(50_000), 500));
    assert_eq!((red.shares.rx.max_frames, red.shares.rx.frame_burst), (Some(100), 7));
}

#[test]
fn missing_keys_have_defaults() {
    let policy = parse("[[link]]\nname = \"l\"\n[[vif]]\nname = \"v\"\nsocket = \"s\"\n");
    let link = Link {
        name: "l".into(),
        rate: None,
        rx_rate: None,
        scheduler: SchedulerKind::Fair,
        idle_timeout: Nanos::from_millis(100),
        isolate: false,
        cpu: None,
        uplink: Uplink::None,
        xen: false,
        rx_pool: 64 << 20,
    };
    let vif = Vif {
        name: "v".into(),
        link: "l".into(),
        card: Card::VhostUser { socket: "s".into(), connect: false, access: Access::default(), packed: false },
        queues: 1,
        tenant: None,
        shares: Shares { tx: default_share(100), rx: default_share(100), same_weight: true },
        rx_queue: 4 << 20,
        rx_timeout: Nanos::from_millis(500),
        mac: None,
        addresses: Vec::new(),
        early_ack: Mode::Off,
    };
    let control = "/run/fairlane/control.sock".into();
    let (observe, sockets) = (None, Access::default());
    let (links, tenants, vifs) = (vec![link], Vec::new(), vec![vif]);
    let (metrics, metrics_token) = (None, None);
    assert_eq!(policy, Policy { control, metrics, metrics_token, observe, sockets, links, tenants, vifs });
}

#[test]
fn the_weight_of_what_a_guest_receives_is_that_of_what_it_sends_unless_given() {
    let weight = |keys: &str| {
        let policy = parse(&format!("[[link]]\nname = \"l\"\n[[vif]]\nname = \"v\"\nsocket = \"s\"\n{keys}"));
        policy.vifs[0].receive().share.weight
    };
    assert_eq!((weight(""), weight("weight = 300"), weight("weight = 300\nrx_weight = 20")), (100, 300, 20));
}

#[test]
fn owner_group_and_mode_of_a_socket() {
    let access_of = |keys: &str| {
        let policy = parse(&format!("[[link]]\nname = \"l\"\n[[vif]]\nname = \"v\"\nsocket = \"s\"\n{keys}"));
        let Card::VhostUser { access, .. } = policy.vifs[0].card.clone() else { panic!("the vif has no socket") };
        access
    };
    let named = |name: &str| Some(Account::Name(name.into()));
    let access = Access { owner: named("qemu"), group: Some(Account::Number(107)), mode: Some(0o660) };
    assert_eq!(access_of("owner = \"qemu\"\ngroup = 107\nmode = \"0660\""), access);
    assert_eq!(access_of("owner = \"EXAMPLE\\\\web\"\nmode = \"600\"").owner, named("EXAMPLE\\web"));
    assert_eq!(access_of("connect = true\nowner = 4294967294").owner, Some(Account::Number(u32::MAX - 1)));
}

#[test]
fn a_wire_queues_two_milliseconds_of_its_rate() {
    for (rate, queue) in [("1Mbit/s", 16 << 10), ("100Mbit/s", 25_000), ("500Mbit/s", 125_000), ("none", 256 << 10)] {
        let near = format!("[[link]]\nname = \"near\"\nrate = \"{rate}\"\nuplink = {{ wire = \"far\" }}\n");
        let policy = parse(&format!("{near}[[link]]\nname = \"far\"\n"));
        assert!(matches!(policy.links[0].uplink, Uplink::Wire { queue: found, .. } if found == queue), "{rate}");
    }
}

#[test]
fn a_burst_is_ten_milliseconds_or_one_large_frame() {
    let burst = |max_rate: &str| {
        let text =
            format!("link = [{{ name = 'l' }}]\nvif = [{{ name = 'v', socket = 's', max_rate = '{max_rate}' }}]");
        parse(&text).vifs[0].shares.tx.burst
    };
    assert_eq!(burst("none"), 65536);
    assert_eq!(burst("50Mbit/s"), 65536);
    assert_eq!(burst("1Gbit/s"), 1_250_000);
}

#[test]
fn bounds_are_inclusive() {
    let text = r#"
        [[link]]
        name = "abcdefghijklmnopqrstuvwxyz_.-012"
        rate = "10Tbit/s"
        idle_timeout = "1us"
        cpu = 1023
        uplink = { tap = "abcdefghijklmno" }
        [[vif]]
        name = "1"
        socket = "@107"
        weight = 1
        queues = 16
        min_rate = "1kbit/s"
        max_rate = "1kbit/s"
        burst = "1514B"
        [[vif]]
        name = "2"
        socket = "2"
        weight = 10000
        burst = "1GiB"
    "#;
    assert_eq!(problems(&text.replace("@107", &"s".repeat(107))), [""; 0]);
}

#[test]
fn an_old_key_is_read_as_the_present_one() {
    let text = "[[link]]\nname = \"lan\"\ndelay = \"20ms\"\n";
    let policy = Policy::parse("p", text).unwrap();
    assert_eq!(policy.links[0].idle_timeout, Nanos::from_millis(20));
    let warnings = crate::renamed_keys("p", text);
    assert_eq!(warnings.iter().map(ToString::to_string).collect::<Vec<_>>(), ["p:3: delay is called idle_timeout now"]);
    let both = Policy::parse("p", &format!("{text}idle_timeout = \"30ms\"\n")).unwrap_err();
    assert_eq!(both[0].to_string(), "p:3: delay is the old name of idle_timeout, which is given too");
    // A wire's `delay` is not an old name.
    let wire = "[[link]]\nname = \"a\"\n[[link]]\nname = \"b\"\nuplink = { wire = \"a\", delay = \"1ms\" }\n";
    assert_eq!(crate::renamed_keys("p", wire), []);
}

#[test]
fn sockets_have_the_access_of_all_unless_they_say_so() {
    let text = "sockets = { owner = \"libvirt-qemu\", group = 7, mode = \"0660\" }\n\
                observe = { socket = \"/run/look\", group = \"adm\" }\n[[link]]\nname = \"lan\"\n\
                [[vif]]\nname = \"a\"\nsocket = \"/a\"\n[[vif]]\nname = \"b\"\nsocket = \"/b\"\nowner = 3\nmode = \"0600\"\n\
                [[vif]]\nname = \"c\"\nsocket = \"/c\"\nconnect = true\n[[vif]]\nname = \"d\"\nxen = \"d/0\"\n";
    let mut policy = parse(text);
    policy.add(Kind::Vif, "e", &[("socket".to_owned(), "/e".to_owned())], false).unwrap();
    let access = |vif: &Vif| match &vif.card {
        Card::VhostUser { access, .. } => Some(access.clone()),
        Card::Xen { .. } => None,
    };
    let all = Access {
        owner: Some(Account::Name("libvirt-qemu".into())),
        group: Some(Account::Number(7)),
        mode: Some(0o660),
    };
    let own = Access { owner: Some(Account::Number(3)), mode: Some(0o600), ..all.clone() };
    let called = Access { mode: None, ..all.clone() };
    let expected = [Some(all.clone()), Some(own), Some(called), None, Some(all)];
    assert_eq!(policy.vifs.iter().map(access).collect::<Vec<_>>(), expected);
    let observe = Observe { socket: "/run/look".into(), group: Some(Account::Name("adm".into())), mode: 0o660 };
    assert_eq!(policy.observe, Some(observe));
}
