"""Search for policies on the modelled target: one process plays them all."""
