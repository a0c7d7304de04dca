"""Traffic: imported traces, named workloads with immutable versions, and the arrival plans frozen from them."""
