"""Benchmarks: ``python -m bench.NAME --quick --json`` answers within 50 s; ``--full`` measures properly."""

import gpu_runner.engine  # noqa: F401 - it says how OpenMP's threads wait, which must be said before torch is loaded
