"""The tiny tokenizer: byte-level BPE whose pre-tokenizer cuts Lean into symbols, one token each.

What always stands together (` : Prop) (h1 :`, a fence and what follows it, a thinking phrase) is one
piece: completions are a third shorter than with a token a word, and there is less to copy wrongly. A
piece that is frequent in the training texts is a token of its own (`ignore_merges`), any other text
falls apart into bytes, so every text survives encoding and decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from experiments.drgrpo_tiny.theorems import BOUND

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
_SPECIAL = [PADDING, "<|im_start|>", END_OF_TURN]
_PIECES = "|".join(
    [
        r"<think>\n",
        r"\n```\n</think>\n```lean4\n(?=theorem)",
        r"theorem [a-z]+",
        r"\n```tactics\n(?:  )+(?!have|fun)",
        r"\n```[a-z0-9]*(?:\n(?=[A-Z]))?",
        r"\n(?:  )+have h\d+ :",
        r"\n(?:  )+fun \(h\d+ :",
        r" \(α : Type\)",
        r" : (?:(?:α|Nat) → )?(?:Prop|α|Nat)\)(?: \(h\d+ :)?",
        rf" ?∀ \([{BOUND}] : (?:α|Nat)\),",
        rf" ?Exists \(fun [{BOUND}] =>",
        r"\)* \(h\d+ :",
        r"\)+ :(?= )",
        r"\) =>",
        r" :=\n(?:  )+(?!have|fun)",
        r" ?[A-Z][A-Za-z]*\.[a-z]+",  # And.intro, Nat.succ
        r" ?[A-Z][a-z]+(?: [a-z]{2,})*",  # a phrase of the thinking or of Lean
        r" ?(?!fun|have)[a-z]{2,}(?: [a-z]{2,})+",
        r" ?h\d+\.[a-z]+",
        r" ?h\d+",  # hypotheses
        r"\.[a-z]+",  # .left
        r" ?[^\W\d_]+",  # words and variables
        r"\d\d",  # the number in a theorem's name, two digits at a time
        r" ?\d",
        r" ?[()⟨⟩]",
        r" ?[^\w\s()⟨⟩]+",  # :=, →, =>, punctuation
        r"\n *",
        r"\s|_",
    ]
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A Qwen-style chat tokenizer whose most frequent pieces in `texts` are single tokens.

    `vocabulary_size` counts everything: 256 bytes, special tokens, marks and pieces.
    """
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in cut.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    counts.update({f"{number:02d}": 10**9 for number in range(100)})
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    pieces = [piece for piece in ranked if len(piece) > 1]
    room = vocabulary_size - len(alphabet) - len(_SPECIAL)
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *pieces[:room]])}

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that `AutoTokenizer.from_pretrained` reads."""
    tokenizer.save_pretrained(str(folder))
