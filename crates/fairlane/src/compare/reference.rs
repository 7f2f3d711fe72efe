//! Published rates of connections and requests, as far as the texts have them as numbers.

use fairlane_report::ResultFile;

/// A published figure.
pub(super) struct Published {
    /// The system measured.
    pub system: &'static str,
    /// Connections per second, or requests for [`RR`].
    pub rate: f64,
    /// Where the figure is from, and its conditions.
    pub origin: &'static str,
}

/// The text has 55K, 20K, 1.5K and 8000; all other figures are in images.
const HAPROXY: &str = "HAProxy Technologies 2011, hypervisors compared";
/// netperf -H 127.0.0.1, so within the machine, never across its virtual card.
const SERVERFAULT: &str = "ServerFault 272483 (2011), netperf on loopback";
/// A later rewrite of the same question, with numbers that the original does not have.
const REWRITE: &str = "rewrite of ServerFault 272483, not in the original";

/// HTTP/1.0 requests per second for empty objects, through HAProxy in a guest.
const HTTP: [Published; 4] = [
    Published { system: "vSphere 5, Intel e1000e", rate: 55_000.0, origin: HAPROXY },
    Published { system: "vSphere 5, Realtek (at most)", rate: 20_000.0, origin: HAPROXY },
    Published { system: "Xen 4.1, Open vSwitch", rate: 8_000.0, origin: HAPROXY },
    Published { system: "Hyper-V, legacy card", rate: 1_500.0, origin: HAPROXY },
];

/// TCP_CRR with a request of 32 bytes and a response of 1024.
const CRR: [Published; 11] = [
    Published { system: "KVM, Phenom X6", rate: 29_280.0, origin: SERVERFAULT },
    Published { system: "bare i5-2300", rate: 23_230.0, origin: SERVERFAULT },
    Published { system: "Xen 3.2.1 PV, X3323", rate: 9_636.0, origin: SERVERFAULT },
    Published { system: "its dom0", rate: 9_589.0, origin: SERVERFAULT },
    Published { system: "Xen, E5345", rate: 6_494.0, origin: SERVERFAULT },
    Published { system: "Xen at a provider, L5520", rate: 4_496.0, origin: SERVERFAULT },
    Published { system: "bare i5", rate: 35_000.0, origin: REWRITE },
    Published { system: "KVM, OpenStack", rate: 22_000.0, origin: REWRITE },
    Published { system: "ESXi", rate: 18_000.0, origin: REWRITE },
    Published { system: "AWS Nitro", rate: 18_000.0, origin: REWRITE },
    Published { system: "Xen, EC2 c1.xlarge", rate: 7_000.0, origin: REWRITE },
];

/// TCP_RR.
const RR: [Published; 6] = [
    Published { system: "KVM, Phenom X6", rate: 104_255.0, origin: SERVERFAULT },
    Published { system: "bare i5-2300", rate: 62_036.0, origin: SERVERFAULT },
    Published { system: "its dom0", rate: 38_347.0, origin: SERVERFAULT },
    Published { system: "Xen 3.2.1 PV, X3323", rate: 36_644.0, origin: SERVERFAULT },
    Published { system: "Xen, E5345", rate: 24_134.0, origin: SERVERFAULT },
    Published { system: "Xen at a provider, L5520", rate: 18_160.0, origin: SERVERFAULT },
];

/// The published figures for the kind of traffic of a result; empty for most.
pub(super) fn published_for(result: &ResultFile) -> &'static [Published] {
    match result.experiment.as_str() {
        "load-http" | "http-sizes" => &HTTP,
        "load-crr" | "accept-rate" => &CRR,
        "load-rr" => &RR,
        _ => &[],
    }
}
