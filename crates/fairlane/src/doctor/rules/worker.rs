//! A thread of the network path that fills its processor: of a virtual card, a switch, or a soft interrupt.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, Thread, percent};

/// Threads by prefix of their name: what they are, and what to do.
const WORKERS: [(&str, &str, &str); 6] = [
    (
        "vhost-",
        "the thread that carries a KVM guest's packets (vhost-net)",
        "give the guest's card several queues (queues=N in the host's -netdev, ethtool -L in the guest), each with its own thread",
    ),
    (
        "vif",
        "the thread that carries a Xen guest's packets (netback)",
        "give the guest's card several queues (modprobe xen-netback max_queues=N), each with its own thread; pin dom0's processors",
    ),
    (
        "ovs-vswitchd",
        "Open vSwitch's daemon, which handles packets of flows that its kernel module does not know, one per connection",
        "use fewer rules that match ports, so that one flow covers many connections, or a Linux bridge",
    ),
    (
        "ksoftirqd/",
        "the kernel's receive processing of one processor, when it is too much for soft interrupts",
        "spread receiving over processors: more queues (ethtool -L), irqbalance, or RPS (scaling.rst)",
    ),
    (
        "fairlane-worker",
        "a worker of Fairlane's backend",
        "move guests to a second link of the policy: each link has its own worker, on its own core (cpu = N)",
    ),
    (
        "pmd-",
        "a polling thread of Open vSwitch with DPDK, which always fills its processor",
        "ovs-appctl dpif-netdev/pmd-stats-show shows whether it had idle cycles",
    ),
];

/// Any of these threads that runs over 90% of the time.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let busy = |thread: &&Thread| thread.running > 0.9;
    let finding = |thread: Thread| {
        let (start, what, remedy) = WORKERS.iter().find(|(start, ..)| thread.name.starts_with(start))?;
        Some(Finding {
            cause: "worker",
            // A polling thread is always busy.
            confidence: if *start == "pmd-" { Confidence::Possible } else { Confidence::Likely },
            limits: if *start == "pmd-" { 0.2 } else { 0.8 },
            seen: format!("{} ran {} of the time on processor {}", thread.name, percent(thread.running), thread.cpu),
            why: format!("it is {what}, and the speed of one processor is its limit"),
            change: vec![Remedy::by_hand(*remedy)],
        })
    };
    let threads = change.threads();
    threads.iter().filter(busy).cloned().filter_map(finding).collect()
}
