"""Real brokers and workers, killed, paused and emptied."""
