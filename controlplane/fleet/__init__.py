"""Workers and calibrated profiles."""
