"""Availability of Hugging Face hub models: in the cache, else by a short query to the hub."""

from __future__ import annotations

import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.models.checkpoint import INDEX, TOKENIZER_FILES, shards_of

WANTED = ["*.json", "*.safetensors", "tokenizer.model", "merges.txt"]  # no pickled weights, no code
TIMEOUT = 3.0  # seconds: a plan must not wait for a hub that does not answer


def cached_folder(repo: str, revision: str) -> Path | None:
    """Return the snapshot folder of a model that is complete in the HF cache, else None. Uses no network.

    Complete: config, a tokenizer and all weights. Raises UserError for an index of weights that is malformed, and for a
    name that no model of the hub can have.
    """
    if _cached(repo, "model.safetensors", revision) is None:
        index = _cached(repo, INDEX, revision)
        if index is None:
            return None
        if any(_cached(repo, shard, revision) is None for shard in shards_of(index)):
            return None
    if not any(all(_cached(repo, name, revision) for name in names) for names in TOKENIZER_FILES):
        return None
    config = _cached(repo, "config.json", revision)
    return config.parent if config is not None else None


def unreachable(repo: str, revision: str) -> str:
    """Return why the model cannot be downloaded now; "" if it can. Cost: up to 4 short requests, once per process."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    status = _probe(repo, "config.json", revision)
    if status == 200 and 404 == _probe(repo, "model.safetensors", revision) == _probe(repo, INDEX, revision):
        return "the hub has no safetensors weights for it at this revision (pickled weights are not loaded)"
    if status in (401, 403):
        return "the hub refuses access: accept the model's licence on its page and set HF_TOKEN"
    if status == 404:
        return "the hub has no such model or revision"
    if status == 0:
        return "the Hugging Face hub cannot be reached"
    return "" if status == 200 else f"the hub answers with status {status}"


def forget() -> None:
    """Ask again at the next question: for a process that outlives a network."""
    _answers.cache_clear()
    _head.cache_clear()


def _cached(repo: str, name: str, revision: str) -> Path | None:
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(repo, name, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    except HFValidationError:
        fix = "write ORGANISATION/NAME, or a folder that holds the model as /…, ~/… or ./…"
        raise UserError(f"{repo!r} is no id of a hub model", where="model.path", fix=fix) from None
    return Path(file) if isinstance(file, str) else None


def _probe(repo: str, name: str, revision: str) -> int:
    from huggingface_hub import constants

    if not _answers(constants.ENDPOINT):
        return 0
    return _head(f"{constants.ENDPOINT}/{repo}/resolve/{revision}/{name}")


@cache
def _answers(endpoint: str) -> bool:
    """Tell whether the hub answers; asked once per process, so that ten hub models wait for one timeout, not ten."""
    return _head(endpoint) != 0


@cache
def _head(url: str) -> int:
    """Return the status of a HEAD request, 200 for a redirect (the hub redirects to its storage); 0: no answer."""
    from huggingface_hub import get_token

    token = get_token()
    request = urllib.request.Request(url, method="HEAD", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with _opener().open(request, timeout=TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return 200 if error.code in (301, 302, 303, 307, 308) else error.code
    except OSError:
        return 0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None  # urllib then raises HTTPError with the redirect's own status


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect)
