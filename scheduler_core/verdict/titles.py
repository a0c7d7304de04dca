"""Names of figures as people write them, the same on pages, in charts and in reports."""

# Suffix of a field's name, how the rest is read, and the unit as shown. The longest suffix is tried first.
_UNITS = (
    ("_tokens_per_s", " tokens", "tokens/s"),
    ("_requests_per_s", " requests", "requests/s"),
    ("_per_s", "", "per s"),
    ("_rps", "", "requests/s"),
    ("_bytes", "", "bytes"),
    ("_blocks", "", "blocks"),
    ("_share", "", "%"),
    ("_ratio", "", ""),
    ("_ms", "", "ms"),
    ("_mb", "", "MB"),
    ("_s", "", "s"),
)
# Abbreviations in names of figures and fields, as people write them.
SPELLED = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "token gap",
    "e2e": "end to end",
    "kv": "KV",
    "slo": "SLO",
}

_TITLES = {
    "throughput_tokens_per_s": "Throughput",
    "throughput_peak_tokens_per_s": "Peak throughput",
    "throughput_requests_per_s": "Request throughput",
}


def metric_title(name: str) -> str:
    """Name of a metric without its unit: ``ttft_p95_ms`` reads "TTFT p95"."""
    if name in _TITLES:
        return _TITLES[name]
    for suffix, kept, _ in _UNITS:
        if name.endswith(suffix):
            name = name.removesuffix(suffix) + kept
            break
    words = [SPELLED.get(word, word) for word in name.replace("_", " ").split()]
    title = " ".join(words)
    return title[:1].upper() + title[1:]


def metric_unit(name: str) -> str:
    """Unit as shown, from the name's suffix; empty for counts and ratios."""
    return next((unit for suffix, _, unit in _UNITS if name.endswith(suffix)), "")
