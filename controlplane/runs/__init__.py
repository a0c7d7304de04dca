"""Runs and their lifecycle: outbox, claim, lease, fencing, reaper."""
