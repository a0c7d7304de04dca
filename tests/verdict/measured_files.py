"""Result files as a load tool leaves them, with a known effect in them."""

import json
import random
from pathlib import Path

REQUESTS = 120


def bench_file(path: Path, *, ttft_s: float, seed: int, failed: int = 0, rate_rps: float = 10) -> Path:
    """Saved by vLLM's serving benchmark: 5 output tokens each 20 ms apart, TTFT near ``ttft_s`` with 5 % jitter."""
    draw = random.Random(seed)
    ttfts = [ttft_s * (1 + draw.gauss(0, 0.05)) for _ in range(REQUESTS)]
    for place in range(failed):
        ttfts[place] = 0.0
    data = {
        "input_lens": [100 + place % 7 for place in range(REQUESTS)],
        "output_lens": [5] * REQUESTS,
        "ttfts": ttfts,
        "itls": [[0.02] * 4 for _ in range(REQUESTS)],
        "errors": ["" if ttft else "HTTP 500" for ttft in ttfts],
        "start_times": [place / rate_rps for place in range(REQUESTS)],
    }
    path.write_text(json.dumps(data))
    return path


def two_arms(folder: Path, *, factor: float, repeats: int = 5) -> dict[str, list[Path]]:
    """Files of ``baseline``, TTFT 200 ms, and of ``candidate``, ``factor`` times that."""
    return {
        arm: [
            bench_file(folder / f"{arm}-{repeat}.json", ttft_s=0.2 * times, seed=100 * repeat + len(arm))
            for repeat in range(repeats)
        ]
        for arm, times in (("baseline", 1.0), ("candidate", factor))
    }
