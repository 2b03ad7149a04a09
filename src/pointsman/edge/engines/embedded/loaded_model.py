"""A model as the engine's server needs it, from wherever it comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.decoder import Decoder
from pointsman.edge.engines.embedded.gguf_file import GgufFile
from pointsman.edge.engines.embedded.gguf_text import gguf_end_ids, gguf_text
from pointsman.edge.engines.embedded.model_config import ModelConfig, config_of_hub
from pointsman.edge.engines.embedded.safetensors_file import SafetensorsFolder
from pointsman.edge.engines.embedded.seeded_weights import seeded, tiny_config
from pointsman.edge.engines.embedded.text import ModelText
from pointsman.edge.engines.embedded.tiny_text import END_OF_ANSWER, tiny_text
from pointsman.edge.engines.embedded.weights import load_weights
from pointsman.edge.engines.openai_server.sampling_fields import ModelDefaults
from pointsman.edge.prompts.chat import ChatRenderer
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.tokenizer import read_tokenizer, special_tokens
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles

SEED = "seed:"
DEFAULT_MODEL = "seed:0"
_CONFIG, _GENERATION = "config.json", "generation_config.json"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything of one model."""

    name: str
    """Under which it is served unless told otherwise."""
    root: str
    """Where it came from."""
    decoder: Decoder
    text: ModelText
    defaults: ModelDefaults

    @property
    def config(self) -> ModelConfig:
        """Its shape."""
        return self.decoder.config


def load_model(model: str) -> LoadedModel:
    """`seed:N`, a Hugging Face directory or a GGUF file. Takes up to a minute.

    Raises ModelFileError that names what can't be used.
    """
    if model.startswith(SEED):
        return _from_seed(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_gguf(path)
    raise ModelFileError(
        f"--model {model}: there is no such file or directory; give a directory with config.json and safetensors, a "
        f"GGUF file, or {SEED}N for a tiny model made from the number N"
    )


def _from_seed(model: str) -> LoadedModel:
    number = model.removeprefix(SEED)
    if not number.isascii() or not number.isdigit():
        raise ModelFileError(f"--model {model}: {number!r} is no number; write for example {DEFAULT_MODEL}")
    text = tiny_text()
    config = tiny_config(text.vocabulary, eos_ids=(END_OF_ANSWER,))
    decoder = Decoder(config, load_weights(config, seeded(config, int(number)), model))
    return LoadedModel(model, model, decoder, text, ModelDefaults(config.eos_ids))


def _from_gguf(path: Path) -> LoadedModel:
    file = GgufFile(path)
    config = file.config
    text = gguf_text(file.metadata, config.vocabulary, str(path))
    decoder = Decoder(config, load_weights(config, file.read, str(path)))
    defaults = ModelDefaults(gguf_end_ids(file.metadata))
    return LoadedModel(path.stem, str(path.absolute()), decoder, text, defaults)


def _from_folder(folder: Path) -> LoadedModel:
    place = folder / _CONFIG
    if not place.exists():
        raise ModelFileError(f"{folder}: has no {_CONFIG}: no directory of a model")
    config = config_of_hub(place.read_bytes(), str(place))
    # The small files first: what is wrong with them is said before gigabytes are read.
    text, named = _folder_text(folder, config.vocabulary)
    eos = named.get("eos_token")
    defaults = _defaults(folder, config, None if eos is None else text.token_id(eos))
    decoder = Decoder(config, load_weights(config, SafetensorsFolder(folder).read, str(folder)))
    return LoadedModel(folder.absolute().name, str(folder.absolute()), decoder, text, defaults)


def _folder_text(folder: Path, vocabulary: int) -> tuple[ModelText, dict[str, str]]:
    files = TokenizerFiles(folder, "given")
    if not files.tokenizer.exists():
        raise ModelFileError(f"{folder}: has no {files.tokenizer.name}; other tokenizers are not supported")
    try:
        named = special_tokens(files.config())
        templates = files.chat_templates()
        renderer = ChatRenderer(templates, named, Dialect.VLLM) if templates else None
        return ModelText(read_tokenizer(files), renderer, vocabulary=vocabulary), named
    except TokenizerFilesError as error:
        raise ModelFileError(str(error)) from None


class _Generation(msgspec.Struct):
    """As `generation_config.json` has it."""

    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def _defaults(folder: Path, config: ModelConfig, eos: int | None) -> ModelDefaults:
    """As vLLM does: values of `generation_config.json` hold where a request says nothing else."""
    place = folder / _GENERATION
    said = _Generation()
    if place.exists():
        try:
            said = msgspec.json.decode(place.read_bytes(), type=_Generation)
        except msgspec.MsgspecError as error:
            raise ModelFileError(f"{place}: {error}") from None
    also = said.eos_token_id
    ends = [*config.eos_ids, *(() if also is None else (also,) if isinstance(also, int) else also)]
    if eos is not None:
        ends.append(eos)
    given: dict[str, Any] = msgspec.structs.asdict(said)
    del given["eos_token_id"]
    sampling = {name: float(value) for name, value in given.items() if value is not None}
    return ModelDefaults(tuple(dict.fromkeys(ends)), sampling)
