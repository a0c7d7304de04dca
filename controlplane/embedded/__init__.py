"""The embedded stack: supervisor, guardian, Valkey."""
