"""Constraints on tokenizers of several kinds: those that can be constrained, and those that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

from steerserve.errors import Refusal
from steerserve.rules.inference.schema_dialect import JSON_OBJECT
from steerserve.worker.rows.constrain import Grammars, mask
from tests.engines.documents import grammars, write
from tests.worker import models
from tests.worker.rows.test_constrain import EOS, PAIR, ROWS, SCHEMAS, constraint, follow


def fallback(marks: list[Any]) -> PreTrainedTokenizerFast:
    """A unigram with a token for each byte, of the kind that SentencePiece writes."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("<eos>", 0.0)]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [(piece, -4.0) for piece in ["▁", *'{}[]",:0123456789abtruefls', "▁a", '":', "é"]]
    core = Tokenizer(kinds.Unigram(pieces, unk_id=0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # type: ignore[assignment]
    core.decoder = decoders.Sequence(marks)  # type: ignore[assignment]
    core.add_special_tokens(["<unk>", "<s>", "<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")


SENTENCE_PIECE = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


def pieces_of_words() -> PreTrainedTokenizerFast:
    words = {word: i for i, word in enumerate(["[UNK]", "[SEP]", "a", "##b", "{", "}", '"'])}
    core = Tokenizer(kinds.WordPiece(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    core.decoder = decoders.WordPiece()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", eos_token="[SEP]")


def lossy() -> PreTrainedTokenizerFast:
    """Byte-level without a token for the quote."""
    alphabet = [c for c in pre_tokenizers.ByteLevel.alphabet() if c != '"']
    core = Tokenizer(kinds.BPE({c: i for i, c in enumerate(["<eos>", *alphabet])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")


@pytest.mark.parametrize("name", ["properties", "string", "pattern, anchored", "enum"])
def test_a_tokenizer_with_byte_fallback_works(name: str) -> None:
    tokenizer = fallback(SENTENCE_PIECE)
    source = grammars(tokenizer)
    rows = [constraint(source, SCHEMAS[name]) for _ in range(ROWS)]
    texts = write(source, rows, steps=200, tokenizer=tokenizer)
    finished = [text for text in texts if text is not None]
    assert finished
    for text in finished:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(text))


def test_padding_and_truncation_of_a_tokenizer_change_nothing() -> None:
    tokenizer = models.tokenizer()
    tokenizer.backend_tokenizer.enable_padding(length=64)
    tokenizer.backend_tokenizer.enable_truncation(8)
    row = constraint(grammars(tokenizer), PAIR)
    assert follow(row, '{"a": 1, "b": "a long enough text"}')


@pytest.mark.parametrize("make", [pieces_of_words, lossy, dict], ids=["words", "lossy", "slow"])
def test_a_tokenizer_that_cannot_be_constrained_is_refused_every_time(make: Any) -> None:
    source = Grammars(make(), 512, frozenset([EOS]))
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            source.compile(JSON_OBJECT).result()
        assert caught.value.code == "RESPONSE_FORMAT_UNSUPPORTED"
        assert "cannot be constrained" in caught.value.message


@pytest.mark.parametrize("ends", [frozenset([EOS]), frozenset([EOS, 319]), frozenset()])
def test_logits_narrower_than_the_tokenizer_and_models_without_an_end_are_masked(
    ends: frozenset[int],
) -> None:
    tokenizer = models.tokenizer()
    narrow = 300
    assert narrow < len(tokenizer)
    source = Grammars(tokenizer, narrow, ends)
    row = source.compile('{"const": 7}').result().constraint()
    masked, refusals = mask(torch.zeros(1, narrow), [row])
    assert not refusals
    (seven,) = tokenizer.convert_tokens_to_ids(["7"])
    assert torch.isfinite(masked[0]).nonzero().flatten().tolist() == [seven]
    row.advance(seven)
    assert row.may_end
