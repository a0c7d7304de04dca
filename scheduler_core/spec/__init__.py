"""What users write: workload, policy, target, goal and experiment, each defined once, here.

Form, admin, REST, CLI and local play all go through `scheduler_core.spec.parse.parse`, so one input gives one answer
everywhere. The JSON Schema that the API documents and the forms render is generated from these models.
"""
