"""Real kernels: a decoder-only transformer over a paged KV cache, driven one step plan at a time.

Data flow of a step: `executor` receives a `StepPlan`; `rows` applies its deltas to the per-request rows; `layout` turns
the grants into a flat batch (NumPy only); `model` runs the forward, writing and reading KV pages through an
`attention` backend; `sampling` picks tokens; the executor hands them back with the intervals it measured.

The engine sees only `scheduler_core.types` and `scheduler_core.drive.ports`. It owns tensors and the run's clock; the
scheduler core owns every block: nothing in here allocates, frees or moves a block on its own.
"""

import os

# OpenMP reads this when PyTorch loads it, so it is set before any module here can import torch. By default idle threads
# spin for about a millisecond at every barrier; with anything else running on the same cores (a dashboard, a worker),
# a step then waits for threads that spin for each other and takes ten times its time.
os.environ.setdefault("GOMP_SPINCOUNT", "500")
