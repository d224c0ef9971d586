"""Checkpoints: folders with a `config.json`, and names on a hub, whose files huggingface_hub fetches into its cache.

A calculated device needs a checkpoint's configuration and none of its weights. The hub is the one that HF_ENDPOINT
names, by default https://huggingface.co. `main` answers the orchestrator, which has no huggingface_hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners import libraries
from runners.phases import Unavailable
from runners.reply import reply

CONFIG = "config.json"
# Files of a hub repository to fetch: top level only, and no second copy of the weights in another format.
CONFIGURATION, WEIGHTS, OLDER_WEIGHTS = "*.json", "*.safetensors", "pytorch_model*.bin"
IGNORED = ["*/*", "consolidated*"]
TIMEOUT_SECONDS = 10.0  # for the hub's first answer


def main(arguments: list[str]) -> None:
    """Answer with {"file": path of config.json} or {"error": why there is none}.

    The arguments: the name on the hub, and its revision or an empty one.
    """
    reply(lambda: _answer(arguments[0], arguments[1] or None))


def _answer(name: str, revision: str | None) -> dict[str, str]:
    try:
        return {"file": str(configuration_of(name, revision))}
    except Unavailable as error:
        return {"error": str(error)}
    except ImportError as error:  # it comes with transformers
        return {"error": libraries.why_not_imported("transformers", error, f"{type(error).__name__}: {error}")}


def is_local(path: str) -> bool:
    """Whether a path is a local folder: it exists, or it is not a valid name of a hub repository."""
    return Path(path).expanduser().is_dir() or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path)


def fetch(model: Mapping[str, Any], weights: bool) -> None:
    """Fetch a checkpoint into the hub's cache; without `weights` its configuration alone, unless it is there.

    Raises FileNotFoundError for a missing folder, ValueError for a folder's revision, and Unavailable.
    """
    path, revision = model["path"], model.get("revision")
    if is_local(path):
        if not Path(path).expanduser().is_dir():
            raise FileNotFoundError(f"model.path={path}: no such folder")
        if revision is not None:
            raise ValueError(
                f"model.revision={revision}: revisions exist on the hub only, and model.path={path} is a folder"
            )
        return
    if not weights:
        if _cached(path, revision) is None:
            configuration_of(path, revision)
        return
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _snapshot(path, revision, [CONFIGURATION, WEIGHTS])
        if not any(folder.glob(WEIGHTS)):
            folder = _snapshot(path, revision, [CONFIGURATION, OLDER_WEIGHTS])
    except LocalEntryNotFoundError as error:
        raise Unavailable(f"model.path={path} is not a local folder, and the hub cannot be reached: {error}") from error
    if not any(each for form in (WEIGHTS, OLDER_WEIGHTS) for each in folder.glob(form)):
        raise Unavailable(f"model.path={path}: its weights are not in {folder}, and the hub gave none")


def folder_of(model: Mapping[str, Any]) -> Path:
    """The folder of a checkpoint that was fetched."""
    path = model["path"]
    if is_local(path):
        return Path(path).expanduser()
    found = _cached(path, model.get("revision"))
    if found is None:
        raise Unavailable(f"model.path={path}: is no longer in the hub's cache")
    return found.parent


def revision_of(folder: Path) -> str | None:
    """The commit of a hub checkpoint (the name of its folder in the hub's cache). None for other folders."""
    folder = folder.absolute()
    return folder.name if folder.parent.name == "snapshots" else None


def configuration_of(name: str, revision: str | None = None) -> Path:
    """The file with the configuration of a name on the hub: the newest one, or the cached one of a hub out of reach.

    Raises Unavailable with the reason and the cure in one line.
    """
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    given = f"model.path={name}" + (f" model.revision={revision}" if revision else "")
    hub = constants.ENDPOINT
    try:
        if not constants.HF_HUB_OFFLINE:
            # The download alone would try an unreachable hub for 23 seconds.
            get_hf_file_metadata(hf_hub_url(name, CONFIG, revision=revision), timeout=TIMEOUT_SECONDS)
        return Path(hf_hub_download(name, CONFIG, revision=revision, local_files_only=constants.HF_HUB_OFFLINE))
    except errors.GatedRepoError:
        cure = f"accept them at {hub}/{name} and log in with hf auth login, or set HF_TOKEN"
        raise Unavailable(f"{given}: its owner asks for terms to be accepted; {cure}") from None
    except errors.RepositoryNotFoundError:
        private = "a private model needs hf auth login, or HF_TOKEN"
        raise Unavailable(f"{given}: no such model on {hub}; check the name; {private}") from None
    except errors.RevisionNotFoundError:
        raise Unavailable(f"{given}: the model has no such revision on {hub}") from None
    except errors.LocalEntryNotFoundError:
        pass
    except errors.EntryNotFoundError:
        raise Unavailable(f"{given}: has no {CONFIG} on {hub}, so it is no model of transformers") from None
    except errors.HFValidationError as error:
        raise Unavailable(f"{given}: {' '.join(str(error).split())}") from None
    except errors.HfHubHTTPError as error:
        if (found := _cached(name, revision)) is not None:
            return found
        raise Unavailable(f"{given}: {hub} answered: {' '.join(str(error).split())}") from None
    except Exception as error:  # of the HTTP library, which is another one in other versions
        if (found := _cached(name, revision)) is not None:
            return found
        why = type(error).__name__
        cure = f"name a folder that has its {CONFIG}, or set HF_ENDPOINT to a hub that can be reached"
        raise Unavailable(f"{given}: is no folder here, and {hub} cannot be reached ({why}); {cure}") from None
    if (found := _cached(name, revision)) is not None:
        return found
    if constants.HF_HUB_OFFLINE:
        raise Unavailable(
            f"{given}: is no folder here and not in the hub's cache, and HF_HUB_OFFLINE is set; unset it, or name a"
            f" folder that has its {CONFIG}"
        )
    raise Unavailable(f"{given}: is no folder here, and {hub} cannot be reached; name a folder that has its {CONFIG}")


def is_prequantized(config: Mapping[str, Any]) -> str | None:
    """The method by which the checkpoint's weights are quantized, by its configuration; None if they are not."""
    stored = config.get("quantization_config")
    if not stored:
        return None
    return str(stored.get("quant_method") or "an unnamed method") if isinstance(stored, Mapping) else "a method"


def _cached(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, CONFIG, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _snapshot(name: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED))
