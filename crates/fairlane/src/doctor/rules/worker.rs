//! A thread of the network path that fills its processor: a virtual card's, a switch's, a soft interrupt's.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::{Change, Thread, percent};

/// Threads by the beginning of their name: what they are, and what to do.
const WORKERS: [(&str, &str, &str); 6] = [
    (
        "vhost-",
        "the thread that carries a KVM guest's packets (vhost-net)",
        "give the guest's card several queues (queues=N in the host's -netdev, ethtool -L in the guest): a thread each",
    ),
    (
        "vif",
        "the thread that carries a Xen guest's packets (netback)",
        "give the guest's card several queues (modprobe xen-netback max_queues=N): a thread each; pin dom0's processors",
    ),
    (
        "ovs-vswitchd",
        "Open vSwitch's program: packets of flows that its kernel module does not know go through it, one a connection",
        "fewer rules that look at ports, so that one flow covers many connections; or a Linux bridge",
    ),
    (
        "ksoftirqd/",
        "the kernel's receiving work of one processor, too much for interrupts alone",
        "spread receiving over processors: more queues (ethtool -L), irqbalance, or RPS (scaling.rst)",
    ),
    (
        "fairlane-worker",
        "a worker of Fairlane's backend",
        "put guests on a second link of the policy: a worker each, on a core of its own (cpu = N)",
    ),
    (
        "pmd-",
        "a polling thread of Open vSwitch with DPDK, which always fills its processor",
        "ovs-appctl dpif-netdev/pmd-stats-show tells whether it had idle cycles",
    ),
];

/// Any that runs, or runs and waits, over 90% of the time.
pub fn find(change: &Change) -> Vec<Finding> {
    let busy = |thread: &&Thread| thread.running > 0.9;
    let finding = |thread: Thread| {
        let (start, what, remedy) = WORKERS.iter().find(|(start, ..)| thread.name.starts_with(start))?;
        Some(Finding {
            cause: "worker",
            // A poller is busy whatever there is to do.
            sure: if *start == "pmd-" { Sure::Possible } else { Sure::Likely },
            limits: if *start == "pmd-" { 0.2 } else { 0.8 },
            seen: format!("{} ran {} of the time on processor {}", thread.name, percent(thread.running), thread.cpu),
            why: format!("it is {what}, and one processor's speed is its limit"),
            change: vec![Remedy::by_hand(*remedy)],
        })
    };
    let threads = change.threads();
    threads.iter().filter(busy).cloned().filter_map(finding).collect()
}
