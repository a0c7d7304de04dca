"""The command line: a thin client of the REST API, and local play without any server. Never imports Django."""
