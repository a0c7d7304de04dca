"""Verdicts for people and machines elsewhere: an offline page, a pull request, a CI report."""
