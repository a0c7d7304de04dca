"""Metric pages beside a run: read by type, mapped by server and version to the evidence's names.

What a page does not export is left out of an observation, never written as 0.
"""
