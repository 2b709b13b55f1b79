"""One shape for every row, whatever file it came from, and an account of every row left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("messages", "prompt-completion", "text")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `role` is system, user, assistant or tool; `tool_calls` as templates read it."""

    role: str
    content: str
    tool_calls: tuple[Mapping[str, object], ...] = ()

    def as_message(self) -> dict[str, object]:
        """The mapping that a chat template is given."""
        message: dict[str, object] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [dict(call) for call in self.tool_calls]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training or evaluation example.

    `kind` says which fields are filled: `messages`; `prompt` and `completion`; or `text`.
    `row` counts from 1 over the whole data set; `file`, `line` lead back to the source (`line`
    is None in Parquet, where there are none).
    """

    kind: str
    row: int
    messages: tuple[Turn, ...] = ()
    prompt: str = ""
    completion: str = ""
    text: str = ""
    tools: tuple[Mapping[str, object], ...] = ()
    file: str = ""
    line: int | None = None

    @property
    def answer(self) -> str | None:
        """What a model should say: the last assistant turn or the completion; None for text."""
        if self.kind == "messages":
            return self.messages[-1].content
        return self.completion if self.kind == "prompt-completion" else None

    @property
    def question(self) -> str:
        """What the model is asked, as plain text: the last user turn, the prompt or the text."""
        if self.kind == "messages":
            asked = [turn.content for turn in self.messages[:-1] if turn.role == "user"]
            return asked[-1] if asked else ""
        return self.prompt if self.kind == "prompt-completion" else self.text

    @property
    def characters(self) -> str:
        """Everything that is tokenised, joined without any template."""
        if self.kind == "messages":
            return "\n".join(turn.content for turn in self.messages)
        return self.prompt + self.completion if self.kind == "prompt-completion" else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """Why one row cannot be used. `reason` is the id of a message `data.reason.<reason>`.

    `column` is the character in the line (from 1) where the fault lies, or None where a whole
    value is at fault; `key` names that value.
    """

    reason: str
    row: int
    file: str = ""
    line: int | None = None
    column: int | None = None
    key: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """What a reading found: each row is either a sample or counted in `bad`."""

    files: tuple[str, ...]
    format: str
    encoding: str
    num_rows: int
    num_samples: int
    bad: Mapping[str, int] = field(default_factory=dict)  # reason: rows
    repaired: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[RowProblem, ...] = ()  # the first of each, at most `MAX_PROBLEMS`
    unused_keys: tuple[str, ...] = ()
    num_bytes: int = 0

    @property
    def num_bad(self) -> int:
        """Rows that are no sample."""
        return sum(self.bad.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """The samples of one or more files, in order, and the report of their reading."""

    samples: tuple[Sample, ...]
    report: DataReport
