"""What a fold leaves: the tables of requests, steps and gaps, in memory and on disk."""
