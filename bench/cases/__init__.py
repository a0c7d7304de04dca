"""Cases that benchmarks and tests share."""
