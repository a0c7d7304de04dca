"""Attention over a paged KV cache, behind one protocol; each backend owns the layout of its pages."""
