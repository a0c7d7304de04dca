"""OpenAI-compatible servers as targets: load client, observer, adapters of known servers, launcher.

A deployment is one traffic URL and a list of metric sources. `client` sends the arrival plan and stamps what comes
back; `observe` reads metric pages beside it; `adapters` know vLLM and SGLang by version; `launch` starts a server from
an administrator's template; `mock` is a server with known token times, for tests and for measuring the client itself.
"""
