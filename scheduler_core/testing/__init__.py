"""Builders, a naive model and a conformance suite for authors of policies and executors."""
