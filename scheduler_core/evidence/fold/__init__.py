"""One pass over a run's records: open requests as objects, everything else as columns."""
