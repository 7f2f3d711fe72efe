//! The memory of a scheduler with tenants. Its test is alone in this process, as it measures the process's allocations.

use fairlane_core::sched::{Share, build_for_tenants};
use fairlane_core::time::Nanos;
use fairlane_core::{PortId, TenantId};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PORTS: u32 = 5_000;

/// Bytes that a tenant may take beside its ports.
const TENANT: usize = 16 << 10;

/// Bytes of a scheduler of [`PORTS`] ports that are divided among some tenants.
fn memory(tenants: u32) -> usize {
    let region = Region::new(ALLOCATOR);
    let share = Share::of_weight(1);
    let mut scheduler = build_for_tenants(None, Nanos::from_millis(10));
    for tenant in 0..tenants {
        scheduler.configure_tenant(TenantId(tenant), share, Nanos(0));
    }
    for port in 0..PORTS {
        scheduler.assign(PortId(port), Some(TenantId(port % tenants)));
        scheduler.configure(PortId(port), share, Nanos(0));
    }
    let change = region.change();
    change.bytes_allocated - change.bytes_deallocated
}

#[test]
fn a_tenant_takes_memory_for_its_own_ports_only() {
    let (one, many) = (memory(1), memory(100));
    assert!(many <= 2 * one + 100 * TENANT, "{many} bytes for 100 tenants, {one} for one");
}
