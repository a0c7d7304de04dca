"""Endpoints: model servers that experiments may be played against, with their secrets; and every way out to them."""
