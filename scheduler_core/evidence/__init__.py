"""From records to figures: segments, the sweep, metrics, audit, the summary of a run."""
