"""KV blocks: who owns each, in which order free ones are reused, and which hold a known prompt beginning."""
