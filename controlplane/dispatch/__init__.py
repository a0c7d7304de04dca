"""The dispatch process: rings the doorbell of queued runs, reaps lost ones, and settles experiments."""
