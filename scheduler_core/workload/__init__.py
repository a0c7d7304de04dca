"""From a workload spec to a frozen arrival plan: trace readers, distributions, freezing."""
