"""From records to figures: everything that is known of a run, computed once and audited.

`segments` holds the records on disk. `fold` turns them into columns in one pass, accounting each open request in
`timeline` and cutting its time into exclusive parts in `sweep`; `requests` derives every field of a request, `tables`
stores them. `metrics` registers each figure with its formula; `slo`, `classes` and `bootstrap` add objectives, classes
and errors. `audit` replays the records with state of its own. `finalise` does all of it for one run and gives the
summary that `schema` defines. `live` folds the same records into samples while a run is going on; `imported` and
`formulas` read other tools' results; `export` writes for other programs.
"""
