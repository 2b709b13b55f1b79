"""Render a model's chat template without transformers, as its tokenizer would.

Templates are Jinja programs from a model's folder, so they run in Jinja's immutable sandbox with
the settings, the globals and the filter that transformers gives them (chat_template_utils).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.errors import MissingExtra, RunError

if TYPE_CHECKING:
    from jinja2 import Template

_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self._template = _compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """The text that is tokenised; raises RunError E066 where the template refuses it."""
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RunError("error.data.template", code="E066", cause=str(error)) from error


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a model's folder (`chat_template.jinja`, else tokenizer_config.json).

    None where the model has none. Raises MissingExtra without jinja2.
    """
    config = _read_json(folder / "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = path.read_text("utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several named templates: [{"name": ..., "template": ...}]
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, special_tokens(folder))


def special_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and so on, by name, from the tokenizer's config files."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = _read_json(folder / name)
        for key in _SPECIALS:
            value = config.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text("utf-8"))
    return value if isinstance(value, dict) else {}


def _compile(source: str) -> "Template":
    try:
        from jinja2 import nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtra("hub", "jinja2") from error

    class Generation(Extension):
        """`{% generation %}` marks what carries a loss; here it only renders its body."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares a set

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise RunError("error.data.template", code="E066", cause=str(error)) from error
