"""Forms of specs, generated from the pydantic models: labels, help, choices and defaults come from the one definition.

`building` turns a model class, data and problems into a tree of nodes that ``templates/specform`` renders; `reading`
turns a posted form back into the plain data that `scheduler_core.spec.parse` reads, the same object as in YAML.
"""
