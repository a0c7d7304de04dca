"""Named policies: reusable parts, compositions of them, and descriptions that need neither."""
