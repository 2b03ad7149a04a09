"""The files of a model's tokenizer: a local directory, the hub's cache on this computer, or the hub."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.hub import HubError, HubFileMissing, fetch_into, shown_url, snapshots

_log = logging.getLogger("pointsman.prompts")

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_OLD = "chat_template.json"
SPECIAL_TOKENS = "special_tokens_map.json"
NAMED_TEMPLATES = "additional_chat_templates"
"""Folder of `NAME.jinja`. Found in directories and caches; a download does not ask for it."""
_OPTIONAL = (CONFIG, TEMPLATE, TEMPLATE_OLD, SPECIAL_TOKENS)
_MAX_FILE_BYTES = 64 * 1024 * 1024
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_INSTEAD = "give the directory that the engine loads its model from, or let the engine tokenize"


@dataclass(frozen=True, slots=True)
class TokenizerPlaces:
    """Where to look, and where to keep what was fetched."""

    store: Path
    """Directory of our own, made when needed."""
    hub_caches: tuple[Path, ...] = ()
    """Caches in the hub's layout, only read."""
    hub_url: str | None = "https://huggingface.co"
    """None: don't ask the hub."""
    hub_token: str | None = field(default=None, repr=False)
    """For repositories that are not public."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A directory with at least `tokenizer.json`."""

    folder: Path
    origin: str
    """Where it came from, in words."""

    @property
    def tokenizer(self) -> Path:
        """The tokenizer as the library of that name keeps it."""
        return self.folder / TOKENIZER

    def config(self) -> dict[str, object]:
        """`tokenizer_config.json`, completed by the older `special_tokens_map.json`; empty if neither is there."""
        config = self._object(CONFIG)
        if "added_tokens_decoder" in config:
            return config
        return {**config, **self._object(SPECIAL_TOKENS)}

    def chat_templates(self) -> dict[str, str]:
        """Templates by name; the one that has no name is `default`. Files of their own go before the configuration."""
        named = self._template_files()
        if named:
            return named
        for source in (self.config(), self._object(TEMPLATE_OLD)):
            found = _templates_in(source.get("chat_template"), self.folder)
            if found:
                return found
        return {}

    def _template_files(self) -> dict[str, str]:
        paths = {path.stem: path for path in sorted((self.folder / NAMED_TEMPLATES).glob("*.jinja"))}
        if (self.folder / TEMPLATE).exists():
            paths["default"] = self.folder / TEMPLATE
        return {name: _read(path) for name, path in paths.items()}

    def _object(self, name: str) -> dict[str, object]:
        path = self.folder / name
        if not path.exists():
            return {}
        try:
            content = json.loads(_read(path))
        except ValueError as error:
            raise TokenizerFilesError(f"{path}: not JSON: {error}; {_INSTEAD}") from None
        if not isinstance(content, dict):
            raise TokenizerFilesError(f"{path}: expected a JSON object; {_INSTEAD}")
        return content


async def find_tokenizer(model: str, places: TokenizerPlaces) -> TokenizerFiles:
    """Files of a model that is named by a directory or as `owner/name`.

    Raises TokenizerFilesError with one line that says what is missing and what to do.
    """
    found = await asyncio.to_thread(_find_here, model, places)
    if found is not None:
        return found
    if not _REPOSITORY.fullmatch(model):
        raise TokenizerFilesError(f"tokenizer {model!r}: no such directory, and no `owner/name` of the hub; {_INSTEAD}")
    if places.hub_url is None:
        caches = ", ".join(str(cache) for cache in places.hub_caches) or "none"
        raise TokenizerFilesError(
            f"tokenizer {model!r}: not in a hub cache (looked in: {caches}), and the hub is switched off; {_INSTEAD}"
        )
    return await _download(model, places.hub_url, places)


def _find_here(model: str, places: TokenizerPlaces) -> TokenizerFiles | None:
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / TOKENIZER).exists():
            raise TokenizerFilesError(
                f"{folder}: has no {TOKENIZER} (a SentencePiece or tiktoken file alone is not enough); {_INSTEAD}"
            )
        return TokenizerFiles(folder.absolute(), "given")
    if not _REPOSITORY.fullmatch(model):
        return None
    for snapshot in snapshots(model, places.hub_caches):
        if (snapshot / TOKENIZER).exists():
            return TokenizerFiles(snapshot, "Hugging Face cache")
    kept = _kept_folder(model, places)
    return TokenizerFiles(kept, "downloaded earlier") if (kept / TOKENIZER).exists() else None


def _kept_folder(model: str, places: TokenizerPlaces) -> Path:
    return places.store / ("models--" + model.replace("/", "--"))


async def _download(model: str, hub_url: str, places: TokenizerPlaces) -> TokenizerFiles:
    """All files go to a folder beside the last place, which gets its name when it is complete."""
    target = _kept_folder(model, places)
    try:
        await asyncio.to_thread(places.store.mkdir, parents=True, exist_ok=True)
        part = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=target.name + ".part-", dir=places.store))
    except OSError as error:
        raise TokenizerFilesError(f"{places.store}: can't be written: {error.strerror}") from error
    try:
        base_url = f"{hub_url}/{model}/resolve/main/"
        await _fetch(base_url, TOKENIZER, part, places.hub_token)
        for name in _OPTIONAL:
            try:
                await _fetch(base_url, name, part, places.hub_token)
            except HubFileMissing:
                (part / name).unlink()
        await asyncio.to_thread(_keep, part, target)
    except HubError as error:
        raise TokenizerFilesError(f"tokenizer {model!r}: the hub gave none ({error}); {_INSTEAD}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
    _log.info("tokenizer of %s: downloaded from %s to %s", model, shown_url(hub_url), target)
    return TokenizerFiles(target, shown_url(hub_url))


async def _fetch(base_url: str, name: str, folder: Path, token: str | None) -> None:
    with (folder / name).open("ab") as file:
        await fetch_into(file, base_url + name, max_bytes=_MAX_FILE_BYTES, token=token)


def _keep(part: Path, target: Path) -> None:
    part.chmod(0o755)
    try:
        part.rename(target)
    except OSError:
        if not (target / TOKENIZER).exists():  # otherwise another process was faster, with the same files
            raise


def _templates_in(value: object, folder: Path) -> dict[str, str]:
    """From a string, or a list of `{"name": …, "template": …}`."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        named = {entry.get("name"): entry.get("template") for entry in value}
        if all(isinstance(name, str) and isinstance(text, str) for name, text in named.items()):
            return named
    raise TokenizerFilesError(
        f"{folder}: chat_template: expected a string, or a list of objects with name and template; {_INSTEAD}"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerFilesError(f"{path}: can't be read: {error}; {_INSTEAD}") from error
