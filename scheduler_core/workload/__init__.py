"""From a workload spec to a frozen arrival plan: the same requests, at the same times, for every arm.

`freeze` is the entry: it takes rows without limits, seeds and people (`slots`) from one of the sources, `synthetic`
with `conversations` or `replay` of a trace (`traces`), and completes them to a `plan`. `distributions` and `uniform`
are the only chance in it, integer and the same on every machine. `profiles` are bundled shapes of traffic, `preview`
is what a page shows of a plan.
"""
