"""Named policies, each a line of immutable versions; reads of the built-in and installed presets."""
