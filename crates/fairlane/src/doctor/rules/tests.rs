//! Each rule on recorded output of machines, and all of them on random text.

use super::examine;
use crate::doctor::finding::{Confidence, Finding};
use crate::doctor::snapshot::{
    DESTINATIONS, DRIVER, FAIRLANE, LISTENERS, NETBACK, OFFLOADS, QDISCS, Snapshot, THREADS, XEN_CREDIT, XEN_DOMAINS,
    XEN_INFO,
};
use crate::doctor::view::Change;
use fairlane_core::time::Nanos;
use fairlane_engine::Waiting;
use fairlane_engine::snapshot::{self as engine, EarlyState, ReceiveState, VifState};
use proptest::prelude::*;

/// The findings for two snapshots with these texts, a second apart.
fn found(before: &[(&str, &str)], after: &[(&str, &str)]) -> Vec<Finding> {
    let snapshot = |texts: &[(&str, &str)]| {
        let mut snapshot = Snapshot::default();
        texts.iter().for_each(|(name, text)| snapshot.put(name, (*text).to_owned()));
        snapshot
    };
    examine(&Change { before: &snapshot(before), after: &snapshot(after), seconds: 1.0 })
}

/// The first finding, which must be of this cause.
fn first(cause: &str, before: &[(&str, &str)], after: &[(&str, &str)]) -> Finding {
    let findings = found(before, after);
    let first = findings.first().unwrap_or_else(|| panic!("{cause} is not found"));
    assert_eq!(first.cause, cause, "{findings:?}");
    first.clone()
}

const NETSTAT: &str = "/proc/net/netstat";
const SNMP: &str = "/proc/net/snmp";

#[test]
fn empty_snapshots_cause_no_finding() {
    assert_eq!(found(&[], &[]), []);
}

#[test]
fn unchanged_counters_cause_no_finding() {
    let counted = [(NETSTAT, "TcpExt: ListenOverflows ListenDrops\nTcpExt: 7 7\n")];
    assert_eq!(found(&counted, &counted), []);
}

#[test]
fn a_backlog_cut_to_somaxconn_is_distinguished_from_a_short_one() {
    let before = [(NETSTAT, "TcpExt: ListenOverflows ListenDrops\nTcpExt: 0 0\n")];
    let mut after = vec![
        (NETSTAT, "TcpExt: ListenOverflows ListenDrops\nTcpExt: 30 30\n"),
        (SNMP, "Tcp: PassiveOpens\nTcp: 70\n"),
        (LISTENERS, "LISTEN 129 128 0.0.0.0:80 0.0.0.0:* users:((\"java\",pid=7,fd=5))\n"),
        ("/proc/sys/net/core/somaxconn", "128\n"),
    ];
    let finding = first("accept-queue", &before, &after);
    assert!(
        finding.confidence == Confidence::Certain && finding.limits > 0.9 && finding.seen.contains("30% lost"),
        "{finding:?}"
    );
    assert_eq!(finding.change[0].text, "sysctl -w net.core.somaxconn=4096");
    after[3].1 = "4096\n";
    assert!(first("accept-queue", &before, &after).change[0].setting.is_none());
    // Two thirds full, without losses yet.
    let waiting = [(LISTENERS, "LISTEN 86 128 0.0.0.0:80 0.0.0.0:*\n")];
    assert_eq!(first("accept-queue", &[], &waiting).confidence, Confidence::Possible);
}

#[test]
fn a_full_syn_queue_without_cookies_suggests_cookies() {
    let after = [
        (NETSTAT, "TcpExt: TCPReqQFullDrop TCPReqQFullDoCookies\nTcpExt: 50 0\n"),
        ("/proc/sys/net/ipv4/tcp_syncookies", "0\n"),
    ];
    let finding = first("syn-queue", &[(NETSTAT, "TcpExt: TCPReqQFullDrop\nTcpExt: 0\n")], &after);
    assert_eq!(finding.change[0].text, "sysctl -w net.ipv4.tcp_syncookies=1");
}

#[test]
fn retransmitted_syns_are_found_above_one_percent() {
    let after = [(NETSTAT, "TcpExt: TCPSynRetrans\nTcpExt: 3\n"), (SNMP, "Tcp: ActiveOpens\nTcp: 100\n")];
    assert_eq!(first("syn-loss", &[], &after).confidence, Confidence::Likely);
    assert_eq!(found(&[], &[(NETSTAT, "TcpExt: TCPSynRetrans\nTcpExt: 1\n"), after[1]]), []);
}

#[test]
fn ports_run_out_to_one_destination() {
    let mut after =
        vec![("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"), (DESTINATIONS, "A 0100007F:1F40 27000\n")];
    let finding = first("ports", &[], &after);
    assert_eq!(finding.confidence, Confidence::Certain);
    assert!(finding.seen.contains("127.0.0.1:8000") && finding.why.contains("471 connections/s"), "{finding:?}");
    assert_eq!(finding.change[0].text, "sysctl -w 'net.ipv4.ip_local_port_range=10000 65535'");
    after[1].1 = "A 00000000000000000000000001000000:0050 20000\n";
    let finding = first("ports", &[], &after);
    assert!(finding.confidence == Confidence::Likely && finding.seen.contains("[::1]:80"), "{finding:?}");
    after[1].1 = "A 0100007F:1F40 14000\n";
    assert_eq!(found(&[], &after), []);
    // By default, the kernel reuses ports on loopback after a second.
    after.push(("/proc/sys/net/ipv4/tcp_tw_reuse", "2"));
    after[1].1 = "A 0100007F:1F40 28000\n";
    assert_eq!(first("ports", &[], &after).confidence, Confidence::Possible);
    after[1].1 = "A 0100000A:1F40 28000\n";
    assert_eq!(first("ports", &[], &after).confidence, Confidence::Certain);
}

#[test]
fn no_table_is_made_smaller() {
    let sets = |finding: Finding| finding.change.into_iter().filter_map(|remedy| remedy.setting).collect::<Vec<_>>();
    let large = [
        ("/proc/sys/net/netfilter/nf_conntrack_max", "33554432"),
        ("/proc/sys/net/ipv4/tcp_max_tw_buckets", "2097152"),
        ("/proc/sys/net/core/netdev_max_backlog", "2147483647"),
    ];
    let with = |seen: (&'static str, &'static str)| [large[0], large[1], large[2], seen];
    let dropped = with(("/proc/net/stat/nf_conntrack", "entries drop\n0a 10\n"));
    assert_eq!(sets(first("conntrack", &[], &dropped)), []);
    let overflown = with((NETSTAT, "TcpExt: TCPTimeWaitOverflow\nTcpExt: 9\n"));
    assert_eq!(sets(first("time-wait", &[], &overflown)), []);
    let softnet = with(("/proc/net/softnet_stat", "64 0a 0\n"));
    assert_eq!(sets(first("backlog", &[], &softnet)), []);
    // Nor one whose size is not known.
    assert_eq!(sets(first("conntrack", &[], &dropped[3..])), []);
    assert_eq!(sets(first("time-wait", &[], &overflown[3..])), []);
}

#[test]
fn full_tables_are_found() {
    let after = [
        ("/proc/sys/net/ipv4/tcp_max_tw_buckets", "1000"),
        ("/proc/net/sockstat", "sockets: used 15\nTCP: inuse 1 orphan 0 tw 900 alloc 1 mem 83\n"),
    ];
    assert_eq!(first("time-wait", &[], &after).confidence, Confidence::Possible);
    let table =
        [("/proc/sys/net/netfilter/nf_conntrack_max", "1000"), ("/proc/sys/net/netfilter/nf_conntrack_count", "800")];
    assert_eq!(first("conntrack", &[], &table).confidence, Confidence::Possible);
    let dropped = [("/proc/net/stat/nf_conntrack", "entries drop early_drop\n0a 10 0\n0a 01 0\n")];
    let finding = first("conntrack", &[], &dropped);
    assert!(finding.confidence == Confidence::Certain && finding.seen.contains("17 packets dropped"), "{finding:?}");
}

#[test]
fn backlog_counters_may_wrap_around() {
    let before = [("/proc/net/softnet_stat", "00000000 fffffffe 00000000\n00000000 00000000 00000000\n")];
    let after = [("/proc/net/softnet_stat", "00000064 00000003 00000000\n00000000 00000000 00000002\n")];
    let finding = first("backlog", &before, &after);
    assert!(finding.seen.starts_with("5 packets dropped (5.0%)"), "{finding:?}");
    assert!(found(&before, &after)[1].seen.contains("2 polling rounds"), "{:?}", found(&before, &after));
}

#[test]
fn stolen_time_and_a_hot_core_are_found() {
    let before = [("/proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")];
    let after =
        [("/proc/stat", "cpu  60 0 0 80 0 0 0 60 0 0\ncpu0 10 0 0 40 0 0 0 50 0 0\ncpu1 50 0 0 40 0 0 0 10 0 0\n")];
    let finding = first("steal", &before, &after);
    assert!(finding.seen.starts_with("30% of the processors' time stolen, 50% on"), "{finding:?}");
    let after = [("/proc/stat", "cpu0 20 0 0 0 0 0 80 0 0 0\ncpu1 20 0 0 79 0 0 1 0 0 0\n")];
    assert!(first("hot-core", &before, &after).seen.starts_with("processor 0 is 100% busy, 80%"));
}

#[test]
fn a_starved_server_names_the_threads_beside_it() {
    let listeners = (LISTENERS, "LISTEN 0 128 *:80 *:* users:((\"nginx\",pid=7,fd=5),(\"nginx\",pid=8,fd=5))");
    let before = [(THREADS, "7 7 1 0 0 0 nginx\n8 8 0 0 0 0 nginx\n9 9 1 0 0 0 hog\n10 10 0 0 0 0 other\n")];
    let threads =
        "7 7 1 300000000 600000000 20 nginx\n8 8 0 0 0 0 nginx\n9 9 1 700000000 0 0 hog\n10 10 0 900000000 0 0 other\n";
    let finding = first("starved", &before, &[listeners, (THREADS, threads)]);
    assert!(
        finding.seen.contains("waited 60% of the time, 30.0 ms per turn") && finding.seen.ends_with("hog (9, 70%)"),
        "{finding:?}"
    );
    assert!((finding.limits - 0.6).abs() < 1e-9);
}

#[test]
fn pressure_is_found_if_no_server_is_known() {
    let pressure =
        |total: u64| format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=0\n");
    let finding =
        first("pressure", &[("/proc/pressure/cpu", &pressure(5))], &[("/proc/pressure/cpu", &pressure(800_005))]);
    assert!(finding.seen.contains("80% of the time"), "{finding:?}");
}

#[test]
fn a_single_acceptor_is_found_but_not_evenly_busy_ones() {
    let cpus = ("/proc/stat", "cpu0 1 0 0 1 0 0 0 0\ncpu1 1 0 0 1 0 0 0 0\n");
    let opened = (SNMP, "Tcp: PassiveOpens\nTcp: 5000\n");
    let listeners = (LISTENERS, "LISTEN 0 128 *:80 *:* users:((\"java\",pid=7,fd=5))\n");
    let before = [(THREADS, "7 7 0 0 0 0 java\n7 8 1 0 0 0 java\n")];
    let after = [cpus, opened, listeners, (THREADS, "7 7 0 990000000 0 1 java\n7 8 1 200000000 0 1 java\n")];
    let finding = first("acceptor", &before, &after);
    assert!(finding.seen.starts_with("*:80 has one listener; thread java of server 7 ran 99%"), "{finding:?}");
    let after = [cpus, opened, listeners, (THREADS, "7 7 0 990000000 0 1 java\n7 8 1 900000000 0 1 java\n")];
    assert_eq!(found(&before, &after), []);
}

#[test]
fn a_busy_worker_is_described() {
    let before = [(THREADS, "7 7 1 0 0 0 vhost-1234\n")];
    let finding = first("worker", &before, &[(THREADS, "7 7 1 950000000 0 1 vhost-1234\n")]);
    assert!(finding.why.contains("vhost-net"), "{finding:?}");
}

#[test]
fn a_shaper_that_delays_packets_is_found() {
    let qdisc = |bytes: u64, overlimits: u64, backlog: u64| {
        format!(
            r#"[{{"kind":"tbf","handle":"1:","dev":"eth0","options":{{"rate":1000000}},"bytes":{bytes},"packets":{bytes},"drops":0,"overlimits":{overlimits},"backlog":{backlog}}}]"#
        )
    };
    let finding = first("rate-cap", &[(QDISCS, &qdisc(0, 0, 0))], &[(QDISCS, &qdisc(970_000, 50, 900))]);
    assert!(finding.confidence == Confidence::Certain && finding.seen.contains("97% of its rate"), "{finding:?}");
    assert_eq!(found(&[(QDISCS, &qdisc(0, 50, 0))], &[(QDISCS, &qdisc(900_000, 50, 0))]), []);
}

#[test]
fn causes_on_a_xen_host_are_found() {
    let ring = format!("{NETBACK}/vif1.0/io_ring_q0");
    let text = "Queue 0\nTX: nr_ents 256\nNAPI state: 1 NAPI weight: 64 TX queue len 0\n\
                Credit timer_pending: 1, credit: 62500, usec: 50000\nremaining: 0, expires: 1, now: 2\n";
    let finding = first("vif-rate", &[(&ring, text)], &[(&ring, text)]);
    assert!(
        finding.confidence == Confidence::Certain
            && finding.seen.starts_with("vif1.0 has used up its credit and waits (10.0 Mbit/s)"),
        "{finding:?}"
    );
    assert_eq!(found(&[], &[(&ring, &text.replace("pending: 1", "pending: 0"))]), []);

    let domains = |dom0: f64, guest: f64| {
        format!("Name ID Mem VCPUs State Time(s)\nDomain-0 0 1024 1 r----- {dom0}\nguest 1 256 2 -b---- {guest}\n")
    };
    let busy = [(XEN_DOMAINS, &*domains(10.98, 5.6))];
    assert_eq!(first("dom0", &[(XEN_DOMAINS, &domains(10.0, 5.0))], &busy).confidence, Confidence::Likely);
    let credit = [
        (XEN_DOMAINS, &*domains(10.5, 6.1)),
        (XEN_INFO, "nr_cpus                : 2\nxen_scheduler          : credit\n"),
        (XEN_CREDIT, "Cpupool Pool-0: tslice=30ms ratelimit=1000us migration-delay=0us\n"),
    ];
    let finding = first("slice", &[(XEN_DOMAINS, &domains(10.0, 5.0))], &credit);
    assert!(
        finding.confidence == Confidence::Likely && finding.seen.contains("3 virtual processors on 2, 80% used"),
        "{finding:?}"
    );
}

#[test]
fn exits_to_an_emulated_device_are_found() {
    let kvm = |name: &str| format!("/sys/kernel/debug/kvm/{name}");
    let after = [(kvm("exits"), "100000\n"), (kvm("io_exits"), "30000\n"), (kvm("halt_exits"), "5000\n")];
    let after: Vec<_> = after.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    assert_eq!(first("exits", &[], &after).limits, 0.3);
}

#[test]
fn missing_offloads_and_emulated_cards_are_found() {
    let (features, driver) = (format!("{OFFLOADS}eth0"), format!("{DRIVER}eth0"));
    let heads = "Inter-| Receive | Transmit\n face | ...\n";
    let (zero, loaded) =
        (format!("{heads}  eth0: 0 0 0 0 0 0 0 0 0 0\n"), format!("{heads}  eth0: 0 900 0 0 0 0 0 0 0 900\n"));
    let mut after = vec![
        ("/proc/net/dev", loaded.as_str()),
        (&*features, "scatter-gather: on\ntcp-segmentation-offload: off\ngeneric-receive-offload: off [fixed]\n"),
    ];
    let finding = first("offloads", &[("/proc/net/dev", &zero)], &after);
    assert_eq!(finding.change[0].text, "ethtool -K eth0 tso on");
    after.extend([(&*driver, "driver: 8139cp\n"), ("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n")]);
    assert!(first("emulated-card", &[("/proc/net/dev", &zero)], &after).seen.contains("8139cp"));
    assert_eq!(found(&after, &after), []);
}

#[test]
fn causes_in_fairlanes_own_backend_are_found() {
    let state = |sent: u64, drops: &str, waits: &str| {
        let port = format!(
            r#""sent_frames":{sent},"sent_bytes":{sent},"received_frames":0,"received_bytes":{sent},"drops":{{{drops}}}"#
        );
        format!(
            r#"{{"time":0,"links":[{{"name":"near","scheduler":"fair","by_weight":true,"rate":null,"idle_timeout":0,"isolate":false,"cpu":null,"uplink":null}}],
            "vifs":[{{"name":"web","link":"near","weight":1,"min_rate":0,"max_rate":8000000,"burst":1,"share":1.0,"waits_for":{waits},
            "waiting":{},"state":"up",{port}}}]}}"#,
            serde_json::to_string(&fairlane_engine::Waiting::default()).unwrap(),
        )
    };
    let finding = first("vif-rate", &[(FAIRLANE, &state(0, "", "null"))], &[(FAIRLANE, &state(990_000, "", "null"))]);
    assert!(finding.seen.contains("99% of its max_rate 8Mbit/s"), "{finding:?}");
    let finding = first(
        "frames-dropped",
        &[(FAIRLANE, &state(0, "", "null"))],
        &[(FAIRLANE, &state(100, r#""spoofed":50"#, "null"))],
    );
    assert!(finding.confidence == Confidence::Certain && finding.seen.ends_with("50 spoofed"), "{finding:?}");
    let finding =
        first("vif-stalled", &[(FAIRLANE, &state(7, "", r#""other""#))], &[(FAIRLANE, &state(7, "", r#""other""#))]);
    assert!(finding.seen.starts_with("vif web waits for other"), "{finding:?}");
}

#[test]
fn a_guest_that_waits_for_its_cpu_is_found() {
    let state = |waits: &[(u64, usize)], early_ack: Option<EarlyState>| {
        let mut waiting = Waiting::default();
        for (millis, count) in waits {
            (0..*count).for_each(|_| waiting.record(Nanos::from_millis(*millis)));
        }
        let receive = ReceiveState { waiting, ..ReceiveState::default() };
        let vif = VifState { name: "web".to_owned(), receive, early_ack, ..VifState::default() };
        serde_json::to_string(&engine::Snapshot { vifs: vec![vif], ..Default::default() }).unwrap()
    };
    let (before, after) = (state(&[(0, 100), (60, 7)], None), state(&[(0, 1080), (3, 10), (20, 3), (60, 14)], None));
    let finding = first("guest-waits", &[(FAIRLANE, &before)], &[(FAIRLANE, &after)]);
    assert!(
        finding.seen.starts_with("guest web left 10 frames, 1.0% of those for it, waiting for 8 ms"),
        "{finding:?}"
    );
    assert!(finding.seen.ends_with("at most 67 ms") && finding.change[1].text.contains("early_ack"), "{finding:?}");
    for after in
        [state(&[(0, 1100), (7, 100), (60, 7)], None), state(&[(0, 100), (60, 70)], Some(EarlyState::default()))]
    {
        assert_eq!(found(&[(FAIRLANE, &before)], &[(FAIRLANE, &after)]), []);
    }
}

#[test]
fn a_vif_that_is_not_served_has_its_probable_cause() {
    type Change = fn(&mut engine::Snapshot);
    // Ten seconds on a link of 100 Mbit/s that `web` fills, while `db` of the tenant `red` is not served for the last four.
    let at = |seconds: u64, change: Change| {
        let sent = engine::PortState { sent_bytes: seconds * 12_500_000, ..engine::PortState::default() };
        let vif = |name: &str, port| VifState {
            name: name.into(),
            link: "lan".into(),
            weight: 1,
            port,
            ..VifState::default()
        };
        let uplink = engine::PortState { received_bytes: sent.sent_bytes, ..sent.clone() };
        let link = engine::LinkState {
            name: "lan".into(),
            scheduler: "fair".into(),
            by_weight: true,
            rate: Some(100_000_000),
            uplink: Some(uplink),
            ..engine::LinkState::default()
        };
        let red = engine::TenantState { name: "red".into(), weight: 1, ..engine::TenantState::default() };
        let mut snapshot = engine::Snapshot {
            time: (10 + seconds) * 1_000_000_000,
            links: vec![link],
            tenants: vec![red],
            vifs: vec![vif("web", sent), vif("db", engine::PortState::default())],
            ..engine::Snapshot::default()
        };
        (snapshot.vifs[0].share, snapshot.vifs[1].unserved) = (1.0, seconds * 400_000_000);
        snapshot.vifs[1].tenant = Some("red".into());
        change(&mut snapshot);
        serde_json::to_string(&snapshot).unwrap()
    };
    let found = |change: Change| found(&[(FAIRLANE, &at(0, change))], &[(FAIRLANE, &at(10, change))]);
    let why = |change: Change| {
        let all = found(change);
        let this = all.iter().find(|finding| finding.cause == "vif-unserved").unwrap_or_else(|| panic!("{all:?}"));
        assert!(this.seen.starts_with("vif db is waiting, not served for 4.0s, while link lan sends "), "{this:?}");
        (this.why.clone(), this.change[0].text.clone())
    };
    let cases: [(Change, &str, &str); 8] = [
        (|_| (), "its weight gives it 50% of the link", "ctl set db weight="),
        (
            |seen| {
                seen.vifs[0].waits_for = Some("uplink".into());
                seen.links[0].uplink = Some(engine::PortState::default());
            },
            "the uplink of link lan is full and sends nothing",
            "ip -s link",
        ),
        (|seen| seen.vifs[1].max_rate = Some(100_000), "its max_rate holds it back", "ctl set db max_rate=none"),
        (|seen| seen.vifs[1].max_frames = Some(5), "its max_frames holds it back", "ctl set db max_frames=none"),
        (|seen| seen.tenants[0].max_rate = Some(100_000), "max_rate of its tenant red", "ctl set red max_rate=none"),
        (|seen| seen.vifs[0].min_rate = 90_000_000, "send 100% of what the link sends", "ctl set db min_rate="),
        (
            |seen| (seen.links[0].scheduler, seen.vifs[0].weight) = ("wrr".into(), 40_000),
            "40000 of 1,514 bytes come before its own, and take 4.8 s",
            "smaller weights",
        ),
        (|seen| seen.links[0].busy = seen.time, "the worker moves frames in 100% of its time", "another link"),
    ];
    for (change, expected, remedy) in cases {
        let (why, change) = why(change);
        assert!(why.contains(expected) && change.contains(remedy), "{why}: {change}");
    }
    // A limit that is not that low is not the cause; what waits for a guest is another finding's; and a short wait is none.
    assert!(why(|seen| seen.vifs[1].max_rate = Some(1_000_000)).0.starts_with("nothing else"));
    let causes = |change: Change| {
        let vifs = found(change).into_iter().filter(|finding| finding.cause.starts_with("vif-"));
        vifs.map(|finding| finding.cause).collect::<Vec<_>>()
    };
    assert_eq!(causes(|seen| seen.vifs[1].unserved /= 5), [""; 0]);
    assert_eq!(causes(|seen| seen.vifs[1].waits_for = Some("web".into())), ["vif-stalled"]);
}

/// Random text with some of the words that the sources print.
fn random_text() -> impl Strategy<Value = String> {
    let words = prop_oneof![
        "[a-z_]{0,12}",
        any::<u64>().prop_map(|number| number.to_string()),
        "[0-9A-Fa-f]{1,40}:[0-9A-F]{0,5}",
        prop::sample::select(vec![
            "TcpExt:",
            "Tcp:",
            "ListenOverflows",
            "PassiveOpens",
            "cpu",
            "cpu0",
            "cpu1",
            "\n",
            "\n",
            "pid=",
            "pid=1,",
            "LISTEN",
            "tslice=",
            "Domain-0",
            "nr_cpus :",
            "timer_pending:",
            "credit:",
            "usec:",
            "eth0:",
            "TCP:",
            "tw",
            "vhost-1",
            "drop",
            "é",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(words, 0..40).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(texts in prop::collection::vec((random_text(), random_text()), 24), seconds in 0.001..1e6f64) {
        let ring = format!("{NETBACK}/vif1.0/io_ring_q0");
        let names = [
            NETSTAT, SNMP, "/proc/net/sockstat", "/proc/net/softnet_stat", "/proc/net/dev", "/proc/net/stat/nf_conntrack",
            "/proc/stat", "/proc/cpuinfo", "/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4/ip_local_port_range",
            "/proc/sys/net/ipv4/tcp_max_tw_buckets", "/proc/sys/net/netfilter/nf_conntrack_max", "/sys/kernel/debug/kvm/exits",
            "/sys/kernel/debug/kvm/io_exits", LISTENERS, QDISCS, XEN_INFO, XEN_DOMAINS, XEN_CREDIT, "ethtool -k eth0",
            "ethtool -i eth0", DESTINATIONS, THREADS, &ring,
        ];
        let (mut before, mut after) = (Snapshot::default(), Snapshot::default());
        for (name, (earlier, later)) in names.iter().zip(texts) {
            before.put(name, earlier);
            after.put(name, later);
        }
        for finding in examine(&Change { before: &before, after: &after, seconds }) {
            prop_assert!(finding.limits.is_finite() && !finding.change.is_empty(), "{finding:?}");
        }
    }
}
