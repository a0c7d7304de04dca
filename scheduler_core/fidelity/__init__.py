"""How far the model may be trusted: bands around what it predicts, and what it predicted against what was measured."""
