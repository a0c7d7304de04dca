"""Live updates over WebSockets."""
