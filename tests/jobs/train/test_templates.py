"""What carries a loss, and where special tokens go: the cases of public bug reports."""

import pytest

from loracle.catalog.datasets import Sample, Turn
from loracle.errors import DataError
from loracle.jobs.train.templates import IGNORED, encode, encode_prompt, prompts_hash

# Renders earlier assistant turns without their thinking, as Qwen3's template does.
FORGETFUL = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOST = "{% for message in messages | reverse %}{{ message['content'] | upper }}|{% endfor %}"
ENDLESS = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)
REFUSES = "{{ raise_exception('no system role') }}"
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>{% endif %}"
    "{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat(*contents):
    roles = ("user", "assistant")
    turns = tuple(Turn(roles[index % 2], text) for index, text in enumerate(contents))
    return Sample(kind="messages", row=1, messages=turns)


def learned(tokenizer, encoded):
    return tokenizer.decode([label for label in encoded.labels if label != IGNORED])


def test_a_turn_is_learned_with_its_end_and_without_the_newline_after_it(tiny):
    tokenizer = tiny.make_tokenizer()
    encoded = encode(tokenizer, chat("hi", "hello"))
    assert tokenizer.decode(encoded.input_ids) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
    )
    assert learned(tokenizer, encoded) == "hello<|im_end|>"
    assert encoded.last_label == tokenizer.eos_token_id


def test_every_assistant_turn_is_learned_and_no_other(tiny):
    tokenizer = tiny.make_tokenizer()
    encoded = encode(tokenizer, chat("a", "one", "b", "two"))
    assert learned(tokenizer, encoded) == "one<|im_end|>two<|im_end|>"


def test_marks_in_the_template_and_prefix_rendering_agree(tiny):
    marked, plain = tiny.make_tokenizer(MARKED), tiny.make_tokenizer()
    sample = chat("a", "one", "b", "two")
    masked = marked.apply_chat_template(
        [turn.as_message() for turn in sample.messages], return_dict=True,
        return_assistant_tokens_mask=True,
    )  # fmt: skip
    ours = encode(plain, sample)
    assert [label != IGNORED for label in ours.labels] == [
        bool(m) for m in masked["assistant_masks"]
    ]
    assert encode(marked, sample) == ours


def test_a_template_that_rewrites_earlier_turns_is_searched_for_each(tiny):
    tokenizer = tiny.make_tokenizer(FORGETFUL)
    encoded = encode(tokenizer, chat("a", "one", "b", "two"))
    assert learned(tokenizer, encoded) == "one<|im_end|><think></think>two<|im_end|>"


def test_the_same_words_in_user_and_assistant_are_told_apart(tiny):
    tokenizer = tiny.make_tokenizer(FORGETFUL)
    encoded = encode(tokenizer, chat("one", "one", "one", "one"))
    assert learned(tokenizer, encoded) == "one<|im_end|><think></think>one<|im_end|>"


def test_a_turn_that_cannot_be_found_is_an_error_with_its_row(tiny):
    with pytest.raises(DataError) as raised:
        encode(tiny.make_tokenizer(LOST), chat("a", "b", "c", "d"))
    assert raised.value.values["row"] == 1


def test_a_refusing_template_is_an_error_with_its_cause(tiny):
    with pytest.raises(DataError, match="no system role"):
        encode(tiny.make_tokenizer(REFUSES), chat("a", "b"))


def test_everything_means_everything(tiny):
    tokenizer = tiny.make_tokenizer()
    encoded = encode(tokenizer, chat("a", "b"), "everything")
    assert encoded.labels == encoded.input_ids


def test_bos_is_written_once_by_a_template_that_writes_it(tiny):
    tokenizer = tiny.make_tokenizer("{{ bos_token }}" + tiny.TEMPLATE, bos="<|endoftext|>")
    add_bos(tokenizer)
    ids = encode(tokenizer, chat("a", "b")).input_ids
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


def test_bos_is_added_where_the_model_expects_it_and_the_template_forgets(tiny):
    tokenizer = tiny.make_tokenizer(bos="<|endoftext|>")
    add_bos(tokenizer)
    sample = chat("a", "b")
    assert encode(tokenizer, sample).input_ids[0] == tokenizer.bos_token_id
    assert encode_prompt(tokenizer, sample)[0] == tokenizer.bos_token_id


def test_no_bos_is_invented_for_a_tokenizer_that_adds_none(tiny):
    tokenizer = tiny.make_tokenizer(bos="<|endoftext|>")
    assert tokenizer.bos_token_id not in encode(tokenizer, chat("a", "b")).input_ids


def test_a_pad_token_that_is_the_end_hides_no_label(tiny):
    tokenizer = tiny.make_tokenizer(pad="<|im_end|>")
    assert encode(tokenizer, chat("a", "b")).last_label == tokenizer.eos_token_id


def test_a_template_without_an_end_of_turn_teaches_no_stop(tiny):
    tokenizer = tiny.make_tokenizer(ENDLESS)
    assert encode(tokenizer, chat("a", "b")).last_label != tokenizer.eos_token_id


def test_the_prompt_is_the_beginning_of_what_was_trained(tiny):
    tokenizer = tiny.make_tokenizer()
    for sample in (
        chat("a", "b"),
        chat("a", "b", "c", "d"),
        Sample(kind="prompt-completion", row=1, prompt="Q: a\nA:", completion=" b"),
    ):
        prompt = encode_prompt(tokenizer, sample)
        whole = encode(tokenizer, sample)
        assert whole.input_ids[: len(prompt)] == prompt
        assert whole.labels[len(prompt)] != IGNORED


def test_a_completion_ends_in_eos_and_the_prompt_is_not_learned(tiny):
    tokenizer = tiny.make_tokenizer()
    sample = Sample(kind="prompt-completion", row=1, prompt="ab", completion="cd")
    assert learned(tokenizer, encode(tokenizer, sample)) == "cd<|im_end|>"
    assert learned(tokenizer, encode(tokenizer, sample, "everything")) == "abcd<|im_end|>"


def test_text_is_learned_whole_and_ends(tiny):
    tokenizer = tiny.make_tokenizer()
    sample = Sample(kind="text", row=1, text="abc")
    assert learned(tokenizer, encode(tokenizer, sample)) == "abc<|im_end|>"


def test_the_hash_of_prompts_changes_with_the_template_only(tiny):
    samples = [chat("a", "b"), chat("c", "d")]
    same = prompts_hash(tiny.make_tokenizer(), samples)
    assert same == prompts_hash(tiny.make_tokenizer(MARKED), samples)
    assert same != prompts_hash(tiny.make_tokenizer(ENDLESS), samples)
    assert same == prompts_hash(tiny.make_tokenizer(), [chat("a", "other"), chat("c", "answer")])


def add_bos(tokenizer):
    """Give the backend a post-processor that begins every text, as Llama's has."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A",
        special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)],
    )
