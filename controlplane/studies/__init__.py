"""Studies: guided plans and searches, whose experiments are made one from the other."""
