"""Evidence for other programs: CSV of the tables, and a timeline for trace viewers."""
