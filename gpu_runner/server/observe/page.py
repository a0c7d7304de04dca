"""A metrics page as samples by name; types come from the page, never from endings of names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]


@dataclass
class Page:
    """Samples of a metrics page by exact name, histograms as their ``_sum``, ``_count`` and ``_bucket``."""

    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> "Page":
        """The page; `ValueError` for what is none."""
        page = cls()
        for family in text_string_to_metric_families(text):
            page.types[family.name] = family.type
            for sample in family.samples:
                page.samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        if not page.samples:
            raise ValueError("the page holds no metrics")
        return page

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over the children of ``name`` whose labels agree; None when the page has none."""
        found = [value for have, value in self.samples.get(name, ()) if _agrees(have, labels)]
        return sum(found) if found else None

    def label(self, name: str, label: str) -> str | None:
        """The value of ``label`` on the first child of ``name``."""
        return next((have[label] for have, _ in self.samples.get(name, ()) if label in have), None)

    def names(self) -> Iterator[str]:
        """Exact sample names."""
        return iter(self.samples)


def _agrees(have: Labels, wanted: Labels) -> bool:
    return all(have.get(name) == value for name, value in wanted.items())
