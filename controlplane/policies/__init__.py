"""Policies and their versions."""
