"""Management commands of the embedded stack."""
