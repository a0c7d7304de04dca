"""Real kernels: a decoder-only transformer over a paged KV cache, driven one step plan at a time.

Data flow of a step: `executor` receives a `StepPlan`; `rows` applies its deltas to the per-request rows; `layout` turns
the grants into a flat batch (NumPy only); `model` runs the forward, writing and reading KV pages through an
`attention` backend; `sampling` picks tokens; the executor hands them back with the intervals it measured.

The engine sees only `scheduler_core.types` and `scheduler_core.drive.ports`. It owns tensors and the run's clock; the
scheduler core owns every block: nothing in here allocates, frees or moves a block on its own.
"""
