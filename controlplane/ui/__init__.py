"""The pages: server-rendered, readable without scripts, live where a run is going on.

`pages` has a module for each thing people look at, over the same selectors and services as the REST API. `specform`
generates the forms of specs and `editor` joins them with YAML; `readings` says how figures read, `drawing` draws
figures as SVG, `charts` declares the live charts; `shell` and `health` are around every page.
"""
