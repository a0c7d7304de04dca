"""Trace readers: from a file in one of the field's formats to rows in integer nanoseconds and tokens.

`reader.read_trace` gives the rows, `inspection.inspect` what a person should see before using them. A file is taken
whole or refused whole: any row that cannot be read refuses it with line numbers, except rows that a declared rule
leaves out (failed calls without output), which are listed with their lines.
"""
