"""People, tokens, one-time sign-in links."""
