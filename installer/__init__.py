"""Builds the environment Headway runs in. Standard library only: nothing is installed yet."""
