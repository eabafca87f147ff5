#!/usr/bin/env python3
"""Trains tiny models with train_gpt and loads their checkpoints with HuggingFace's code.

    test/run/check_roundtrip.py [--build build/cpu]        also: make test-roundtrip PYTHON='venv4/bin/python venv5/...'

With safetensors and numpy: all values are finite, and the numpy model below, which needs every tensor by its name and
shape, computes the logits of train_gpt in float64. With torch and transformers also:
GPT2LMHeadModel.from_pretrained loads the checkpoint with no missing and no unexpected keys and the same logits in f32;
train_gpt loads the output of save_pretrained bit for bit; AutoTokenizer of a model of bytes or BPE has the same ids,
pads a batch to the same logits, and comes back with a token added. transformers 4 and 5 differ: run it with both.
Logits are the same within 1e-5 of the maximum.
"""
import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import safetensors
except ImportError as error:
    sys.exit(f"check_roundtrip: {error}; pip install safetensors numpy; torch and transformers as well for all of it")
try:
    import torch
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
except ImportError as error:
    print(f"check_roundtrip: {error}: checking with safetensors only")
    transformers = None

LIMIT = 1e-5
RUNS = [        # name, options
    ("tied, f32", ["--layers", "2", "--heads", "2", "--channels", "32"]),
    ("untied, f32", ["--init", "test/reference/hf/untied"]),
    ("untied, from f16", ["--init", "test/reference/hf/untied-f16-shards"]),
]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        sys.exit(f"check_roundtrip: {' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def want(condition, text):
    if not condition:
        sys.exit(f"check_roundtrip: {text}")


def read_tensors(path):
    """Opened by safetensors, which checks the header; the numbers by hand, as numpy has no bfloat16."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    with safetensors.safe_open(path, "np") as file:
        want(set(file.keys()) == set(header) - {"__metadata__"}, f"{path}: other names than safetensors reads")
        want(file.metadata() == {"format": "pt"}, f"{path}: metadata is {file.metadata()}")
    tensors, dtypes = {}, set()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtypes.add(entry["dtype"])
        raw = data[slice(*entry["data_offsets"])]
        number = (np.frombuffer(raw, "<f4") if entry["dtype"] == "F32" else
                  (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4"))
        tensors[name] = number.reshape(entry["shape"]).astype(np.float64)
        want(np.isfinite(number).all(), f"{path}: {name} is not finite")
    want(len(dtypes) == 1, f"{path}: data types {dtypes}")
    return tensors, dtypes.pop()


def numpy_logits(w, config, ids):
    """GPT-2, one sequence."""
    NH, C = config["n_head"], config["n_embd"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:len(ids)]
    hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for l in range(config["n_layer"]):
        h = f"transformer.h.{l}."
        q, k, v = (part.reshape(len(ids), NH, C // NH).transpose(1, 0, 2)
                   for part in np.split(linear(norm(x, h + "ln_1"), h + "attn.c_attn"), 3, axis=-1))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(C // NH) + hidden
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = (p / p.sum(-1, keepdims=True)) @ v
        x = x + linear(y.transpose(1, 0, 2).reshape(len(ids), C), h + "attn.c_proj")
        f = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        f = 0.5 * f * (1 + np.tanh(np.sqrt(2 / np.pi) * (f + 0.044715 * f**3)))
        x = x + linear(f, h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w.get("lm_head.weight", w["transformer.wte.weight"]).T


def error(a, b):
    return np.abs(np.asarray(a, np.float64) - b).max() / np.abs(b).max()


def check(name, options, build, scratch, rng):
    out = os.path.join(scratch, name.replace(", ", "-"))
    tokens = os.path.join(scratch, "tokens.bin")
    init = options[options.index("--init") + 1] if "--init" in options else None
    V = json.load(open(f"{init}/config.json"))["vocab_size"] if init else 300
    numbers = [V - 1] + [min(int(rng.expovariate(0.1)), V - 1) for _ in range(2000)]
    with open(tokens, "wb") as file:        # a token shard: 1024 bytes of header
        file.write(struct.pack("<3i", 20240520, 1, len(numbers)).ljust(1024, b"\0"))
        file.write(struct.pack(f"<{len(numbers)}H", *numbers))
    run(f"{build}/train_gpt", "--data", tokens, "--val-data", tokens, "--out", out, "--steps", "20", "--batch", "4",
        "--lr", "0.01", "--warmup", "1", *(options if init else [*options, "--context", "16", "--vocab", str(V)]))
    checkpoint_dir = os.path.join(out, "best")          # a link to step-00000020
    config = json.load(open(f"{checkpoint_dir}/config.json"))
    ids = [rng.randrange(V) for _ in range(config["n_positions"])]

    def logits_of(checkpoint):
        lines = run(f"{build}/logits", checkpoint, *map(str, ids)).splitlines()
        return np.array([line.split() for line in lines[-len(ids):]], np.float64)

    logits = logits_of(checkpoint_dir)
    tensors, dtype = read_tensors(f"{checkpoint_dir}/model.safetensors")
    want((dtype == "BF16") == ("bf16" in name), f"{name}: the file holds {dtype}")
    want(config["tie_word_embeddings"] == name.startswith("tied"), f"{name}: config.json says otherwise")
    want(len(tensors) == 12 * config["n_layer"] + 4 + (not config["tie_word_embeddings"]), f"{name}: {list(tensors)}")
    differences = {"numpy": error(logits, numpy_logits(tensors, config, ids))}
    if transformers:
        model, info = transformers.GPT2LMHeadModel.from_pretrained(checkpoint_dir, dtype=torch.float32,
                                                                   output_loading_info=True)
        left = {key: found for key, found in info.items() if found and key != "error_msgs"}
        want(not left or list(left) == ["missing_keys"] and set(left["missing_keys"]) == {"lm_head.weight"}
             and config["tie_word_embeddings"], f"{name}: from_pretrained reports {left}")
        with torch.no_grad():
            differences["transformers"] = error(logits, model.eval()(torch.tensor([ids])).logits[0].numpy())
        kept = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_dir, dtype="auto")
        want(str(kept.dtype) == "torch." + config["torch_dtype"], f"{name}: dtype=\"auto\" is {kept.dtype}")
        want(("BF16" == dtype) == (config["torch_dtype"] == "bfloat16"), f"{name}: {config['torch_dtype']}")
        back = os.path.join(scratch, "back")
        shutil.rmtree(back, ignore_errors=True)
        kept.save_pretrained(back, max_shard_size="20KB")
        differences["itself, and back"] = error(logits_of(back), logits)
        want(differences["itself, and back"] == 0, f"{name}: the logits of what save_pretrained wrote differ")
    print(f"{name:13} logits differ from " + ", ".join(f"{who} {off:.1e}" for who, off in differences.items()))
    want(max(differences.values()) <= LIMIT, f"{name}: want at most {LIMIT}")


def check_tokenizer(name, build, scratch, tokenizer_file=None):
    """AutoTokenizer of a model of bytes or BPE: ids, decoding, a padded batch, and what save_pretrained writes."""
    text, out, back = (os.path.join(scratch, f"{name}{end}") for end in (".txt", "", "-back"))
    every = "".join(map(chr, range(0x250))) + " two  spaces, don't .\r\n\u65e5\u672c \U0001f600 <|endoftext|>"
    with open(text, "w", encoding="utf-8", newline="") as file:
        file.write(every)
    run(f"{build}/train_gpt", "--data", text, "--out", out, "--steps", "1", "--batch", "1", "--context", "16",
        "--layers", "1", "--heads", "1", "--channels", "16",
        *(["--tokenizer", os.path.dirname(tokenizer_file)] if tokenizer_file else []))
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(out, "best"), dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.join(out, "best"))
    want(len(tokenizer) == model.config.vocab_size, f"{name}: AutoTokenizer has {len(tokenizer)} tokens")
    want(tokenizer.model_max_length == model.config.n_positions, f"{name}: length {tokenizer.model_max_length}")
    ids = tokenizer(every)["input_ids"]
    expected = (transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)(every)["input_ids"]
                if tokenizer_file else list(every.encode()))
    want(ids == expected, f"{name}: AutoTokenizer gives {ids[:20]} ...")
    want(tokenizer.decode(ids) == every, f"{name}: AutoTokenizer reads another text from them")
    batch = tokenizer(["th", "the and"], padding=True, return_tensors="pt")
    want(batch["attention_mask"].sum(1).tolist() == [len(tokenizer(part)["input_ids"]) for part in ("th", "the and")],
         f"{name}: padded to {batch}")
    with torch.no_grad():       # token_type_ids, by transformers 4 without model_input_names, would change them
        for row, mask, logits in zip(batch["input_ids"], batch["attention_mask"], model(**batch).logits):
            alone = model(row[mask == 1][None]).logits[0].numpy()
            want(error(logits[mask == 1].numpy(), alone) <= LIMIT, f"{name}: a padded batch has other logits")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    model.resize_token_embeddings(len(tokenizer))
    for part in model, tokenizer:
        part.save_pretrained(back)
    said = run(f"{build}/train_gpt", "--sample", back, "--prompt", "the <|user|>", "--sample-tokens", "1")
    want(said.startswith("the <|user|>"), f"{name}, with a token added: train_gpt says {said}")
    print(f"{name:13} AutoTokenizer has the same ids, a padded batch the same logits, an added token comes back")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", default="build/cpu", help="directory of train_gpt and logits")
args = parser.parse_args()
print(f"safetensors {safetensors.__version__}, numpy {np.__version__}" +
      (f", torch {torch.__version__}, transformers {transformers.__version__}" if transformers else ""))
with tempfile.TemporaryDirectory() as scratch:
    rng = random.Random(1)
    for name, options in RUNS:
        check(name, options, args.build, scratch, rng)
    if transformers:
        check_tokenizer("bytes", args.build, scratch)
        check_tokenizer("bpe", args.build, scratch, "test/reference/bpe/tokenizer.json")
print(f"{len(RUNS)} of {len(RUNS)} round trips")
