"""Traffic: imported traces, workloads, frozen arrival plans."""
