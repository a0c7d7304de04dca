"""Benchmarks: ``python -m bench.NAME --quick --json`` answers within 50 s; ``--full`` measures properly."""
