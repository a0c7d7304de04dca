"""Runs and their lifecycle: queued, claimed under a lease, fenced by attempt, finished or reaped.

`lifecycle` is the one table of states, `services` every write to a run, `supervision` what a worker does with one.
"""
