"""Stored evidence of runs, fenced by attempt: segments and artifacts as files, live samples as rows."""
