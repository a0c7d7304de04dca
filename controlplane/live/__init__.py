"""Live updates over WebSockets, told from the database: a tick says that something changed, never what.

`groups` names the channel layer's groups and sends the ticks that services ask for; `consumers` is the socket,
`subscriptions` what one socket follows, `snapshots` what it is told. `views` gives the same messages to pages that
poll, `series` the reduced curves of charts; `protocol` has the messages, limits and close codes.
"""
