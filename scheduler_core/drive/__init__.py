"""The one loop that plays an arrival plan through an instance, and the ports it needs."""
