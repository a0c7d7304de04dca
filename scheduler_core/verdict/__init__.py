"""From finished runs to accept, tune or reject, with comparability beside it."""
