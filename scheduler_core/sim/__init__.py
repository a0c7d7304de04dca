"""The modelled target: step costs, a simulated clock, and an executor that knows the true output lengths."""
