"""Other people's systems beside ours: what runs in their interpreters, and how it is asked from here."""
