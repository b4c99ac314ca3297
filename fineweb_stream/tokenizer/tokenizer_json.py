"""Byte-level BPE from Hugging Face's `tokenizer.json`; the reference is the package `tokenizers` (an extra).

A special token in a text is plain text, as everywhere here. An added token that is not special is matched wherever it
occurs, as in `tokenizers`. The file's post-processor, which adds tokens before or after a text, is ignored.
(Format: the `tokenizers` library's serialization, version 1.0.)
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..support.errors import InputError
from ..support.shell import python_command, quoted
from .cuts import NO_CUTS, WORD_CUTS, CutRule, rule_beside, scheme_of
from .gpt2 import bytes_by_name
from .tokenizer import MAX_IDS, Tokenizer, TokenizerSpec, find_eot

EOT_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""Usual end-of-text tokens, for files without a `tokenizer_config.json` that names it."""

_ADD_EOT = python_command(
    "import sys; from tokenizers import Tokenizer as T; t = T.from_file(sys.argv[1]);"
    f" t.add_special_tokens(['{EOT_TEXTS[0]}']); t.save(sys.argv[1])"
)

NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}  # bytes that valid UTF-8 never has: a vocabulary may lack them


@functools.lru_cache(maxsize=4)
def of_json(spec: TokenizerSpec, data: bytes, config: bytes) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`; `config` is the `tokenizer_config.json` beside it, `{}` if none.

    Raises `InputError` for a file that is damaged, or not a supported byte-level BPE.
    """
    content = _parse(spec.name, data)
    added = [token for token in content.get("added_tokens") or [] if isinstance(token, dict)]
    vocab: dict[str, int] = content["model"]["vocab"]
    ids = vocab | {token["content"]: token["id"] for token in added}
    eot_id = _find_eot(spec, config, added)
    for token in added:
        token["special"] = token["special"] or token["id"] == eot_id
    texts = {token["content"] for token in added}
    whole = [token for token in added if not token["special"]]

    def is_sure(token: dict[str, Any]) -> bool:
        """Tell whether the fast engine finds an added token as the reference does, also in what is normalized."""
        is_changed = content.get("normalizer") and (token.get("normalized") or not token["content"].isascii())
        is_mixed = any(
            (other["special"] or bool(other.get("normalized")) != bool(token.get("normalized")))
            and _overlap(token["content"], other["content"])
            for other in added
            if other is not token
        )
        return not (is_changed or is_mixed or _looks_beside(token))

    def load_reference() -> Any:
        try:
            from tokenizers import Tokenizer as Reference
        except ImportError:
            raise InputError("a tokenizer.json needs the package tokenizers", "pip install -U tokenizers") from None
        try:
            reference: Any = Reference.from_str(json.dumps(content))
        except Exception as error:  # it raises nothing more special
            reason = str(error).partition("\n")[0]
            raise InputError(f"{spec.name}: tokenizers cannot load it: {reason}", "save it with tokenizers") from None
        for token in added:
            if (id := reference.token_to_id(token["content"])) != token["id"]:
                raise InputError(
                    f"{spec.name}: gives the added token {token['content']!r} the id {token['id']}, which is {id}"
                    " by the vocabulary and the tokens before it",
                    "correct the id in it, or save it again with the tokenizers package",
                )
        reference.encode_special_tokens = True
        reference.no_truncation()
        reference.no_padding()
        return reference

    @functools.cache
    def token_bytes() -> list[bytes]:
        by_name = bytes_by_name()
        tokens = [b""] * (max(ids.values()) + 1)
        for text, i in ids.items():
            is_whole = text in texts or any(char not in by_name for char in text)
            tokens[i] = text.encode() if is_whole else bytes(by_name[char] for char in text)
        return tokens

    def hf_json(end: str) -> str:
        assert eot_id is not None
        kept = [*whole, _added_token(eot_id, end)]
        model = content["model"] | {"vocab": {text: i for text, i in vocab.items() if i != eot_id}}
        return json.dumps(content | {"added_tokens": kept, "model": model, "post_processor": None})

    path = Path(spec.name)
    return Tokenizer(
        name=path.parent.name or path.name if path.name == "tokenizer.json" else path.name,
        eot_id=eot_id,
        n_ids=max(ids.values()) + 1,
        vocabulary_sha256=hashlib.sha256(data).hexdigest(),
        spec=spec,
        load_reference=load_reference,
        token_bytes=token_bytes,
        reference="tokenizers",
        has_fast=eot_id is not None and all(map(is_sure, whole)) and not _is_merged(content, ids, eot_id),
        hf_json=hf_json,
        cuts=_rule(content, [each for each in added if not each["special"] or re.search(r"\s", each["content"])]),
    )


def _parse(path: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
        model, vocab = content["model"], content["model"]["vocab"]
        kind = model.get("type") or ("BPE" if "merges" in model else "?")
        # A byte has several tokens then, by its place in a word, and a vocabulary may lack any of them.
        kind += "".join(
            f" with {name}" for name in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(name)
        )
        steps = [str(step["type"]) for step in _steps(content)]
        is_plain = isinstance(vocab, dict) and bool(vocab)  # Unigram's is a list
        is_plain = is_plain and all(type(i) is int and 0 <= i < MAX_IDS for i in vocab.values())
        (content.get("normalizer") or {}).get("type")
        for pair in model["merges"] if kind == "BPE" else ():
            if not isinstance(pair, str):
                "".join(pair)
        for token in content.get("added_tokens") or []:
            token["special"], token["content"].encode()
            if not 0 <= token["id"] < MAX_IDS:
                raise ValueError(f"the id {token['id']}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: not a tokenizer.json ({type(error).__name__}: {error})", "name Hugging Face's file of that name"
        ) from None
    if kind != "BPE" or "ByteLevel" not in steps or model.get("byte_fallback") or not is_plain:
        raise InputError(
            f"{path}: a tokenizer of another kind ({kind}; {', '.join(steps) or 'no pre-tokenizer'})",
            "only byte-level BPE is exact for any text: GPT-2's, Llama 3's, Qwen's are; name one of those",
        )
    if any(step.get("add_prefix_space") for step in _steps(content)):
        raise InputError(f"{path}: it puts a space before each text", "set add_prefix_space to false in it")
    lost = [name for name, byte in bytes_by_name().items() if name not in vocab and byte not in NOT_IN_UTF8]
    if lost:
        raise InputError(
            f"{path}: no token for {len(lost)} of the bytes that texts have: text with one of them would be lost",
            "train it with initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()",
        )
    if model.get("dropout"):
        raise InputError(f"{path}: it leaves out merges at random, so ids would vary", "set dropout to null in it")
    return content  # type: ignore[no-any-return]


def _added_token(id: int, content: str) -> dict[str, Any]:
    """Return the entry of a special token."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, **flags, "special": True}


def _steps(content: dict[str, Any]) -> list[dict[str, Any]]:
    step = content.get("pre_tokenizer") or {}
    return list(step["pretokenizers"]) if step.get("type") == "Sequence" else [step] if step else []


def _looks_beside(token: dict[str, Any]) -> bool:
    """Tell whether what stands beside an added token decides where it begins and ends, or whether it is one."""
    return any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word"))


def _is_merged(content: dict[str, Any], ids: dict[str, int], id: int) -> bool:
    """Tell whether a merge makes this id, so that a text may have it."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in content["model"]["merges"])
    return any(ids.get("".join(pair)) == id for pair in pairs)


def _overlap(a: str, b: str) -> bool:
    """Tell whether two tokens may share characters of a text.

    >>> _overlap("foo", "foofoo"), _overlap("<a>", "><"), _overlap("<tool>", "<|end|>")
    (True, True, False)
    """
    ends = any(x.endswith(y[:n]) for x, y in ((a, b), (b, a)) for n in range(1, len(y) + 1))
    return ends or a in b or b in a


def _rule(content: dict[str, Any], whole_texts: list[dict[str, Any]]) -> CutRule:
    """Return the cut rule for the file's normalizer, pattern and added tokens: NO_CUTS unless one is proven safe."""
    normalizer = (content.get("normalizer") or {}).get("type")
    if normalizer not in (None, "NFC") or any(map(_looks_beside, whole_texts)):
        return NO_CUTS
    return rule_beside(_pattern_rule(_steps(content)), [token["content"] for token in whole_texts])


def _pattern_rule(steps: list[dict[str, Any]]) -> CutRule:
    """Return WORD_CUTS if a known pattern splits the text (also `ByteLevel`'s, GPT-2's own), after any `Digits`."""
    while steps and steps[0]["type"] == "Digits":
        steps = steps[1:]
    if len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True):
        pattern = steps[0].get("pattern")
        regex = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
        is_known = scheme_of(regex) and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert")
        return WORD_CUTS if is_known else NO_CUTS
    return WORD_CUTS if len(steps) == 1 and steps[0].get("use_regex", True) else NO_CUTS


def _find_eot(spec: TokenizerSpec, config: bytes, added: list[dict[str, Any]]) -> int | None:
    """Return the end-of-text id: the requested one, the one of the model's configuration, or one with a usual name."""
    by_text = {token["content"]: int(token["id"]) for token in added}
    if spec.eot is not None and not added:
        raise InputError(
            f"--eot-id {spec.eot}: {spec.name} has no added token at all", f"add one: {_ADD_EOT} {quoted(spec.name)}"
        )
    if spec.eot is not None:
        return find_eot(spec.eot, by_text, f"added token of {spec.name}")
    try:
        said = json.loads(config).get("eos_token")
    except (ValueError, AttributeError, RecursionError):
        said = None
    said = said.get("content") if isinstance(said, dict) else said
    if isinstance(said, str) and said in by_text:
        return by_text[said]
    return next((by_text[text] for text in EOT_TEXTS if text in by_text), None)
