"""The pages, one module for each thing people look at."""
