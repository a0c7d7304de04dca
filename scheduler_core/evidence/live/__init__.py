"""What a run page shows while the run goes on, folded from the same records that the evidence is made of."""
