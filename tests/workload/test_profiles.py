"""The bundled shapes: complete, attributed, and the same as computed anew from the traces."""

import json
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import pytest

from scheduler_core.types.errors import InputError
from scheduler_core.workload import profiles
from scheduler_core.workload.profiles import load_profile, profile_names
from scheduler_core.workload.profiles.derive import SOURCES, derive, main, quantiles, render


def test_names() -> None:
    assert profile_names() == ("azure-2023-code", "azure-2023-conv", "burstgpt", "mooncake-conversation")
    assert set(profile_names()) == set(SOURCES)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_profile_is_complete_and_attributed(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.prompt_tokens.values) == len(profile.output_tokens.values) == 101
    assert profile.gaps_s is None or len(profile.gaps_s.values) == 101
    assert profile.prompt_tokens.values[0] >= 1 and profile.output_tokens.values[0] >= 1
    notes = " ".join(profile.notes())
    assert profile.attribution in notes and profile.licence in notes and profile.title in notes
    assert profile.licence.startswith(("CC-BY 4.0", "Apache-2.0"))


def test_a_profile_holds_no_rows() -> None:
    """Quantiles only: nothing in the folder is larger than a few kilobytes."""
    sizes = [len(item.read_bytes()) for item in files(profiles).iterdir() if item.name.endswith(".json")]
    assert sizes and max(sizes) < 5000


def test_figures_known_of_the_traces() -> None:
    """Minima and maxima of the published slices, as anyone can recount them."""
    conv, mooncake = load_profile("azure-2023-conv"), load_profile("mooncake-conversation")
    assert (conv.rows, conv.prompt_tokens.values[-1], conv.output_tokens.values[-1]) == (8000, 14050, 1000)
    assert (mooncake.rows, mooncake.prompt_tokens.values[-1], mooncake.gaps_s) == (3000, 123192, None)
    assert load_profile("burstgpt").rows == 383, "17 of 400 calls failed"


def test_quantiles_by_hand() -> None:
    """Of 0, 10, 20: the quantile at p % lies p / 5 on; of thirds, four decimals are kept."""
    found = quantiles([20, 0, 10])
    assert [found[place] for place in (0, 25, 50, 75, 100)] == [0, 5, 10, 15, 20]
    assert quantiles([Fraction(1, 3), Fraction(2, 3)])[::100] == [0.3333, 0.6667]


def test_unknown_profile() -> None:
    with pytest.raises(InputError, match="there is no profile 'nope'; there are azure-2023-code"):
        load_profile("nope")


def test_derive_asks_for_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.traces
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_profiles_match_the_traces(name: str, traces: Path) -> None:
    computed = derive(name, traces)
    assert files(profiles).joinpath(f"{name}.json").read_text("utf-8") == render(computed)
    assert json.loads(render(computed)) == computed
