"""Results measured by other tools, read with their units and quirks, as summaries of level ``imported``."""
