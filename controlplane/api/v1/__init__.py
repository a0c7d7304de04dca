"""Version 1 of the REST API, one module per resource: its input and output forms and its views.

Additions (fields, resources, codes) are compatible; renaming or removing is not, and would be version 2.
"""
