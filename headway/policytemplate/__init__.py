"""A package with one policy, to begin from: texts with places for its name."""
