//! The datapath: workers, live configuration, control, metrics.
