"""The audit: the records of a run replayed with state of its own, and each law of a run checked."""
