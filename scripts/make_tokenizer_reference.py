#!/usr/bin/env python3
"""Writes test/reference/bpe, which test_bpe reads: a tokenizer trained by HuggingFace's library, and texts with the
words and ids that it and tiktoken agree on.

    python3 -m pip install tokenizers tiktoken
    scripts/make_tokenizer_reference.py --out test/reference/bpe

train.txt is made here, of invented words in several scripts. vocab.json, merges.txt and tokenizer.json are of
BpeTrainer(vocab_size 499, min_frequency 2, ByteLevel.alphabet()), with <|endoftext|> added to the last as the last
token. cases.json has a line per text: the bytes of its words, and its ids.
"""
import argparse
import json
import os
import random
import sys

sys.path.insert(0, "test/text")
from check_tokenizer import PATTERN, tiktoken, tiktoken_of, tokenizers, trained_by_tokenizers, write

SYLLABLES = {"latin": "ba be ka ko na ni ra ti so the ing er on", "cyrillic": "на ко то ра ни ве",
             "greek": "αλ βε γα κο λο", "han": "你 好 世 界 人 大", "hangul": "한 국 어 말",
             "devanagari": "नि ति का मा"}
CASES = [
    "", "a", " ", "  ", "\n", "\n\n", " \n", "\n ", "\t\n x", "   x", "x   ", "x  y   z", " \u00a0x",
    "\u3000\u3000x", "\r\n\r\n", "I'm we've they'll he'd isn't it's you're", "I'M IT'S 'S 's 't''re '", " 's x's's",
    "''s", "'", "don\u2019t", "rock'n'roll", "12345 3.14 1st 2nd ½ Ⅷ ٣٤٥ 二十 ²x³", "a1b2", "!!! ??? ...---",
    "x=[1,2];", "<|endoftext|>", "é e\u0301 ñ n\u0303", "naïve café über Straße", "the batirakoning the sothe",
    "привет наконивера", "γαλοκο", "你好世界人大", "한국어말", "नितिका मा\u0301", "שלום عربي ไทย", "👋 🌍 👩\u200d👩\u200d👧 🇩🇪",
    "\u200b\ufeff\u2028\u2029\u0085x", "\U00010400\U0001d7d8\U0002a700", "\ufffd\ufffe\U0010ffff",
    "\x01\x1b[0m\x7f\x1c\x1d", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "banananananabeka" * 12, "thething" * 40 + "!", "\u0378\u05ff\u2fff", "ǅʰـ՚ⅷ", "\u1680x\u180ey\u205fz",
]


def make_text(rng):
    words = {name: ["".join(rng.choice(s.split()) for _ in range(rng.randint(1, 4))) for _ in range(40)]
             for name, s in SYLLABLES.items()}
    lines = []
    for _ in range(160):
        names = rng.choices(list(words), weights=[8, 3, 1, 2, 1, 1], k=rng.randint(1, 9))
        line = " ".join(rng.choice(words[name]) for name in names)
        lines.append(line + rng.choice([".", "!", "", "'s", "  ", " 12", " 1999.", ",\n"]))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    os.makedirs(out, exist_ok=True)
    text = make_text(random.Random(1))
    write(f"{out}/train.txt", text)
    tokenizer = trained_by_tokenizers(text, 499)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.model.save(out)
    peer = tiktoken_of(tokenizer.get_vocab())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    with open(f"{out}/cases.json", "w", encoding="ascii") as file:
        file.write(f'{{"made by": "tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}", "cases": [\n')
        for i, case in enumerate(CASES):
            ids = tokenizer.encode(case).ids
            assert ids == peer.encode_ordinary(case), case
            words = [len(word.encode()) for word, _ in split.pre_tokenize_str(case)]
            file.write(json.dumps({"text": case, "words": words, "ids": ids}))
            file.write(",\n" if i + 1 < len(CASES) else "\n")
        file.write("]}\n")
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(f"{out}/tokenizer.json", pretty=False)


main()
