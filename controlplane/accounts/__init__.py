"""People and how they prove who they are: passwords behind a throttle, API tokens, one-time sign-in links."""
