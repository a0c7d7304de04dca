"""Stored evidence: segments, artifacts, live samples."""
