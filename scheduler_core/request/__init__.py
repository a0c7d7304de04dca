"""One request as the core knows it: description, lifecycle and progress."""
