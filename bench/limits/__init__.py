"""What a machine could do at best with a step, beside what the engine takes for it and where that time goes."""
