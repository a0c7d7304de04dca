"""Calibration: measures steps of the engine over a designed grid and fits the cost that the modelled target runs on."""
