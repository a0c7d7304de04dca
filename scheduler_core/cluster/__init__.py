"""Layers 4 and 5: several instances behind a router. Adds to `sched`, changes nothing in it; sans-IO like it.

A request's way: the `router` picks an instance, `cluster` submits it there; instances plan and complete as they would
alone. What routers see of an instance is its `load`, as old as the policy says.
"""
