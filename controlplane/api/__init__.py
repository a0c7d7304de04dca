"""The REST API: one view per resource in `v1`, over the same selectors and services as the pages.

What all views share lies here: `base` (body, entity tags), `authentication`, `permissions`, `throttling`, `limits`,
`idempotency` (safe retries), `pagination`, `problems` (the one error shape) and `schema` (the OpenAPI document).
"""
