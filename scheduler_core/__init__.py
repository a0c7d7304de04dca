"""The science of Headway: scheduling, evidence and verdicts as pure Python.

Nothing in here imports Django or torch, reads a clock, starts a thread or draws a random number of its own:
time arrives as integer nanoseconds and randomness as an explicit counter-based source, so every result can be
replayed anywhere.
"""

from scheduler_core.compiled import use

use()
