"""From finished runs to accept, tune or reject, with comparability beside it.

`decide` is the entry: `comparable` says whether two arms may be compared at all, `pairs` and `gates` judge what was
declared, `watches` what is always watched, and `decision` is the table from judged gates to the answer. `layers`,
`attribution`, `symptoms` and `diagnosis` explain it; `next_steps` and `guided` offer the next experiment; `load_sweep`
compares arms over a range of loads. `schema` is the verdict as data; `text` and `report` put it in words.
"""
