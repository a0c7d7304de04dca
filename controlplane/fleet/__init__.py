"""Workers and calibrated profiles: who is there to do a run, and what modelled targets run on."""
