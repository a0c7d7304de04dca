"""The muscle: executors with real effects, and the composition of one run."""
