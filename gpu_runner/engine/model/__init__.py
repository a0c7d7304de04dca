"""One decoder family: weights, rotary embedding and the forward pass. Knows nothing of scheduling."""
