"""Where one request's time went: its critical path, and what removing an interval would change."""
