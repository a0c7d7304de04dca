"""Ask a server what it is."""

from collections.abc import Mapping
from typing import Any

from gpu_runner.server.adapters import sglang, vllm
from gpu_runner.server.adapters.asking import Asking
from gpu_runner.server.adapters.known import Abilities, Found
from gpu_runner.server.http.pool import Pool
from gpu_runner.server.http.request import NoAnswerError, ask
from scheduler_core.spec.server import ServerKind
from scheduler_core.types.errors import InputError, Problem


async def detect(
    pool: Pool, headers: Mapping[str, str], *, kind: ServerKind = "auto", model: str | None = None
) -> Found:
    """What answers at ``pool``'s origin.

    Raises:
        InputError: nobody answers, the secret is refused, or there is no such model.
    """
    asking = Asking(pool, headers)
    try:
        models = await ask(pool, "GET", "/v1/models", headers=headers)
        if models.status in (401, 403):
            raise _problem(f"{pool.origin.url} refuses the secret (status {models.status})")
        listed = [item for item in (models.json() or {}).get("data", []) if isinstance(item, dict)]
        name = _model(listed, model, pool.origin.url)
        if kind in ("auto", "vllm") and (found := await vllm.read(asking, listed, name)) is not None:
            return found
        if kind in ("auto", "sglang") and (found := await sglang.read(asking, name)) is not None:
            return found
    except NoAnswerError as error:
        raise _problem(f"{pool.origin.url}: {error}") from None
    if kind in ("vllm", "sglang"):
        raise _problem(f"{pool.origin.url} does not answer as {kind} does; use server: auto")
    notes = ("an OpenAI-compatible server of no known kind: lengths are not forced, settings cannot be read back",)
    return Found("openai", "", name, Abilities(), notes=notes)


def _model(listed: list[dict[str, Any]], wanted: str | None, url: str) -> str:
    names = [str(item.get("id")) for item in listed]
    if wanted is not None:
        if names and wanted not in names:
            raise _problem(f"{url} has no model {wanted!r}; it has {', '.join(names[:10])}", "model")
        return wanted
    if not names:
        raise _problem(f"{url} lists no model at /v1/models; name one", "model")
    return names[0]


def _problem(message: str, where: str = "url") -> InputError:
    return InputError([Problem(f"target.server.{where}", message)])
