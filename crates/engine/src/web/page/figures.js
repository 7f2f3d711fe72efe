"use strict";
// Figures as a person reads them: the same as `fairlane top`.

function scaled(value, step, units) {
  for (const [index, unit] of units.entries()) {
    const decimals = index > 0 ? 1 : 0;
    // A value that would round up to `step` is shown in the next unit.
    if (value + 0.5 / 10 ** decimals < step || index + 1 === units.length) return value.toFixed(decimals) + unit;
    value /= step;
  }
}

const rate = (bits) => scaled(bits, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
const size = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const time = (nanos) => (nanos == null ? "-" : scaled(nanos, 1000, ["ns", "us", "ms", "s"]));
const part = (share) => (share == null ? "-" : share.toFixed(3));
const number = (value) => (value == null ? "-" : value.toFixed(0));
const several = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;
const notServed = (vif) => (vif.unserved >= 1e9 ? [`not served for ${time(vif.unserved)}`] : []);
const state = (vif) => [vif.state, ...notServed(vif)].join(", ");

function duration(nanos) {
  const seconds = Math.floor(nanos / 1e9);
  const two = (value) => String(value).padStart(2, "0");
  return `${Math.floor(seconds / 3600)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
}
