#!/usr/bin/env python3
"""Compares the tokenizer with HuggingFace's tokenizers and tiktoken, and times it beside tiktoken.

    python3 -m pip install tokenizers tiktoken
    test/text/check_tokenizer.py [--build build/cpu]                                     also: make test-tokenizer
    test/text/check_tokenizer.py --bench TEXT [--tokenizer DIR] [--threads 1]            also: make bench-tokenizer

Without --bench: tokenizers are trained by both on 400 KB of characters of many scripts, and must have the same merges;
this text, other such texts, and 1 MB without a space must have the same ids; every code point must split words as in
both libraries; AutoTokenizer, if transformers is installed, must read what was written. With --tokenizer GPT-2's or
another one, from vocab.json and merges.txt or encoder.json and vocab.bpe, is compared as well.
"""
import argparse
import array
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

try:
    import tiktoken
    import tokenizers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError as error:
    sys.exit(f"check_tokenizer: {error}; pip install tokenizers tiktoken")

PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x80), (0x80, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x700),
          (0x900, 0xE00), (0xE00, 0x1200), (0x1200, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100),
          (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0x10000), (0x10000, 0x12000),
          (0x1D400, 0x1D800), (0x1F300, 0x1FB00), (0x20000, 0x32000), (0, 0x110000)]
WORDS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'", "''", "'S", " ", " ", "  ", "\n", "\n\n", "\t ", "\r\n",
         "\u00a0", "\u3000 ", "\u2028", "the", " and", " of", "ing", " 2024", "123", "!!", "...", "\0", "e\u0301",
         "\u200d", "\ufeff"]


def want(condition, text):
    if not condition:
        sys.exit(f"check_tokenizer: {text}")


def make_text(rng, pieces):
    def characters():
        first, last = rng.choice(BLOCKS)
        codes = [rng.randrange(first, last) for _ in range(rng.choice([1, 1, 2, 3, 5, 8]))]
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    return "".join(rng.choice(WORDS) if rng.random() < 0.45 else characters() for _ in range(pieces))


def run(*command, **environment):
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    want(result.returncode == 0, f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def encode(program, tokenizer, path, *options, **environment):
    """Ids of a text, as the shards of a new directory, and what was printed."""
    with tempfile.TemporaryDirectory() as out:
        said = run(program, path, "--tokenizer", tokenizer, "--val-fraction", "0", "--out", f"{out}/shards", *options,
                   **environment)
        ids = []
        for name in sorted(name for name in os.listdir(f"{out}/shards") if name.endswith(".bin")):
            with open(f"{out}/shards/{name}", "rb") as file:
                magic, _, count = struct.unpack("<3i", file.read(1024)[:12])
                numbers = array.array("H" if magic == 20240520 else "i", file.read())
                want(len(numbers) == count, f"{name}: {len(numbers)} tokens, the header has {count}")
                ids += numbers
    return ids, said


def tiktoken_of(vocabulary):
    """tiktoken's encoding of a vocabulary {token in GPT-2's letters: id}."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(0x100 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in printable)}
    end = vocabulary.pop("<|endoftext|>", len(vocabulary))
    ranks = {bytes(byte_of[letter] for letter in token): i for token, i in vocabulary.items()}
    return tiktoken.Encoding("peer", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})


def own_files(directory):
    """The vocabulary and the merges of a tokenizer.json that tokenize has written."""
    with open(f"{directory}/tokenizer.json", encoding="utf-8") as file:
        model = json.load(file)["model"]
    return model["vocab"], [tuple(merge.split(" ")) for merge in model["merges"]]


def peers_of(directory):
    """HuggingFace's tokenizer and tiktoken's of the files of a directory."""
    if os.path.exists(f"{directory}/tokenizer.json"):
        vocabulary, merges = own_files(directory)
    else:
        pair = "vocab.json", "merges.txt"
        if not os.path.exists(f"{directory}/vocab.json"):
            pair = "encoder.json", "vocab.bpe"
        vocabulary, merges = models.BPE.read_file(*(f"{directory}/{name}" for name in pair))
    peer = Tokenizer(models.BPE(vocabulary, merges))
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return peer, tiktoken_of(dict(vocabulary))


def trained_by_tokenizers(text, size):
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return peer


def compare(program, directory, text, what):
    peer, tik = peers_of(directory)
    end = tik.eot_token
    expected = [end] + tik.encode_ordinary(text)
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/text"
        write(path, text)
        for threads in "1", "4":
            ids, _ = encode(program, directory, path, OMP_NUM_THREADS=threads)
            want(ids == expected, f"{what}: tiktoken has other ids")
        want(ids == [end] + peer.encode(text).ids, f"{what}: tokenizers has other ids")
        marked = text[:2000] + "<|endoftext|>" + text[2000:] + "<|endoftext|>"
        write(path, marked)
        ids, _ = encode(program, directory, path, "--documents", "mark")
        want(ids == tik.encode(marked, allowed_special="all"), f"{what}, with <|endoftext|>: tiktoken has other ids")
    print(f"ok   {what}: {len(text.encode())} bytes, {len(expected)} ids")


def train(program, scratch, text, vocab_size):
    write(f"{scratch}/train.txt", text)
    run(program, f"{scratch}/train.txt", "--train-tokenizer", "--vocab-size", str(vocab_size),
        "--out", f"{scratch}/ours")
    os.mkdir(f"{scratch}/theirs")
    trained_by_tokenizers(text, vocab_size - 1).model.save(f"{scratch}/theirs")
    (_, merges), (_, peers) = own_files(f"{scratch}/ours"), models.BPE.read_file(
        f"{scratch}/theirs/vocab.json", f"{scratch}/theirs/merges.txt")
    want(merges == peers, f"vocabulary {vocab_size}: tokenizers has other merges")
    print(f"ok   training: {len(text.encode())} bytes, {len(merges)} merges")
    return f"{scratch}/ours"


def check_auto_tokenizer(directory, text):
    try:
        import transformers
    except ImportError:
        print("skip AutoTokenizer: transformers is not installed")
        return
    transformers.utils.logging.set_verbosity_error()
    auto, (_, tik) = transformers.AutoTokenizer.from_pretrained(directory), peers_of(directory)
    text += "<|endoftext|>" + text[:100]
    ids = auto(text)["input_ids"]
    want(ids == tik.encode(text, allowed_special="all") and auto.decode(ids) == text, "AutoTokenizer has other ids")
    want(auto.eos_token_id == tik.eot_token, f"AutoTokenizer ends texts with {auto.eos_token_id}")
    print("ok   AutoTokenizer reads the trained tokenizer")


def bench(program, directory, path, threads):
    _, tik = peers_of(directory)
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    size, best = len(text.encode()), [0.0, 0.0]
    for _ in range(5):
        start = time.perf_counter()
        expected = tik.encode_ordinary(text)
        best[0] = max(best[0], 1e-6 * size / (time.perf_counter() - start))
        ids, said = encode(program, directory, path, OMP_NUM_THREADS=str(threads))
        best[1] = max(best[1], float(re.search(r"([0-9.]+) MB/s", said).group(1)))
    want(ids == [tik.eot_token] + expected, "tiktoken has other ids")
    print(f"{path}: {1e-6 * size:.1f} MB, {len(ids)} tokens; best of 5\n"
          f"tiktoken {tiktoken.__version__}, one thread   {best[0]:8.1f} MB/s\n"
          f"tokenize, threads: {threads}, with the shard  {best[1]:8.1f} MB/s, {best[1] / best[0]:.1f} times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/cpu")
    parser.add_argument("--tokenizer")
    parser.add_argument("--bench", metavar="TEXT")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    program, rng = os.path.join(options.build, "tokenize"), random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        if options.bench:
            directory = options.tokenizer or f"{scratch}/trained"
            if not options.tokenizer:
                run(program, options.bench, "--train-tokenizer", "--vocab-size", "50257", "--out", directory)
            return bench(program, directory, options.bench, options.threads)
        directory = train(program, scratch, make_text(rng, 60000), 4000)
        check_auto_tokenizer(directory, make_text(rng, 2000))
        for tokenizer in filter(None, [directory, options.tokenizer]):
            compare(program, tokenizer, make_text(rng, 60000), "characters of many scripts")
            compare(program, tokenizer, "".join(f"a{chr(c)}1{chr(c)} {chr(c)}b" for c in range(0x110000)
                                                if not 0xD800 <= c < 0xE000 and (c < 0x3400 or c % 5 == 0)),
                    "code points beside letters and numbers")
            compare(program, tokenizer, "".join(rng.choice("etaoinshr") for _ in range(1 << 20)), "a word of 1 MB")


if __name__ == "__main__":
    main()
