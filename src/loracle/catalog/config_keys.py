"""A config.json seen through its row of the table: our names in, checked values out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loracle.errors import CatalogError


@dataclass(frozen=True, slots=True)
class Keys:
    """A config seen through its row: our names in, values out, defaults filled, types checked."""

    config: Mapping[str, Any]
    row: Mapping[str, Any]
    model: str

    def get(self, name: str) -> Any:
        """The config's value under our name, or transformers' default, or None.

        A key that is written as null means "absent" in a config.json: the class default holds
        only where the key is not there at all, except for the keys that transformers itself
        fills in when it finds None.
        """
        key = self.row["keys"].get(name, name)
        for candidate in (key, name):
            if candidate in self.config:
                return self.config[candidate]
        value = self.row["defaults"].get(key)
        return None if value == "none" else value

    def size(self, name: str) -> int:
        """A positive whole number. Raises CatalogError E034."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.bad(name, value)
        return value

    def optional_size(self, name: str) -> int | None:
        """A positive whole number, or None where it is null, zero or absent."""
        return None if self.get(name) in (None, 0, False) else self.size(name)

    def flag(self, rule: object) -> bool:
        """A rule of the table: a truth value, or the config key that holds one."""
        return bool(self.get(rule) if isinstance(rule, str) else rule)

    def number(self, name: str) -> float | None:
        """A number, or None."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(name, value)
        return float(value)

    def bad(self, name: str, value: object) -> CatalogError:
        """The error for an impossible value."""
        key = self.row["keys"].get(name, name)
        return CatalogError(
            "error.shape.bad_value", code="E034", model=self.model, key=key, value=repr(value)
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What every law starts from."""

    keys: Keys
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    @property
    def row(self) -> Mapping[str, Any]:
        """The architecture's row of the table."""
        return self.keys.row

    @property
    def norm_width(self) -> int:
        """Parameters of one norm over the hidden size."""
        return {"rmsnorm": 1, "layernorm": 2, "layernorm-unbiased": 1, "layernorm-plain": 0}[
            self.row["norm"]
        ] * self.hidden


def facts_of(keys: Keys) -> Facts:
    """The sizes of a decoder. Raises CatalogError E034 where they cannot be."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads = heads if keys.row.get("multi_head_only") else keys.optional_size(
        "num_key_value_heads"
    ) or heads  # fmt: skip
    head_dim = keys.optional_size("head_dim")
    uneven = keys.row.get("uneven_heads") or keys.row["law"] == "latent"
    if head_dim is None and hidden % heads and not uneven:
        raise keys.bad("num_attention_heads", heads)
    if heads % kv_heads:
        raise keys.bad("num_key_value_heads", kv_heads)
    return Facts(
        keys=keys,
        hidden=hidden,
        intermediate=keys.optional_size("intermediate_size") or 4 * hidden,
        layers=keys.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        vocab=keys.size("vocab_size"),
        tied=keys.flag("tie_word_embeddings"),
    )
