"""The metric registry, and the figures in it by what they are about."""
