#!/usr/bin/env python3
"""Compares the figures of train_gpt --eval --task with a computation by PyTorch and transformers of its own, item by
item: log-probabilities, choices, accuracies, errors.

    test/text/check_tasks.py                                              tricky items of its own, small random models
    test/text/check_tasks.py hellaswag=hellaswag_val.jsonl                items of a file
    test/text/check_tasks.py --model DIR lambada=lambada_test.jsonl       a model that from_pretrained loads

Definitions as in lm-evaluation-harness: its clean-up of HellaSwag, its split of the tokens of context and choice, its
length normalisation by characters. Rows are computed one by one, without padding, in float32.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"check_tasks: {error}; pip install torch transformers")

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# Each item once; LONG is longer than the context of the random models.
LONG = "The quick brown fox jumps over the lazy dog, and " * 12
TRICKY = {
    "multiple-choice": [
        {"context": "The sky is", "choices": ["blue.", "square."], "label": 0},
        {"context": "trailing blanks  ", "choices": ["a", "bb", "ccc"], "label": 2},
        {"context": "trailing line\n\n", "choices": ["a", "bb"], "label": 1},
        {"context": "", "choices": ["nothing", "before"], "label": 1},
        {"context": "caf\u00e9\u00a0", "choices": ["\u4f60\u597d", "\U0001f600 \u0645\u0631", "e\u0301"], "label": 2},
        {"context": LONG, "choices": ["cut", "on the left"], "label": 0},
        {"context": "It's", "choices": [" 've 42", "\ttab", "<|endoftext|>"], "label": 1, "more": [None, {"a": 1.5}]},
        {"context": "left out", "choices": ["a", LONG * 2], "label": 0}],
    "hellaswag": [
        {"activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "he PUTS", "ctx": "unused", "label": 1,
         "endings": ["it down.", "[header] up [title] It [step] is", " a  b   c ", "[x\n] [y]"]},
        {"activity_label": "[header] How", "ctx_a": "[header] How to [title] Do [step] it.", "ctx_b": "", "label": "3",
         "endings": ["[substeps] One.", "Two [ three", "] four", "five"]},
        {"activity_label": "Bare", "ctx": "The context alone. he", "label": 0, "endings": ["a", "b", "c", "d"]}],
    "lambada": [
        {"text": "the last word"}, {"text": "alone"}, {"text": "a line\n\nand \u201cquotes"}, {"text": "two  blanks"},
        {"text": LONG + "end"}],
}


def clean(text):
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def question(task, item):
    """Context, choices, label."""
    if task == "multiple-choice":
        return item["context"], item["choices"], item["label"]
    if task == "lambada":
        *context, word = item["text"].split(" ")
        return " ".join(context), [word], 0
    context = f"{item['ctx_a']} {item['ctx_b'].capitalize()}" if "ctx_a" in item else item["ctx"]
    return clean(f"{item['activity_label']}: {context}"), [clean(text) for text in item["endings"]], int(item["label"])


def split(encode, start, context, choice):
    """Tokens of context and continuation."""
    continuation, blanks = " " + choice, len(context) - len(context.rstrip())
    if blanks:
        context, continuation = context[:-blanks], context[-blanks:] + continuation
    if not context:
        return [start], encode(continuation)
    before, whole = encode(context), encode(context + continuation)
    return before, whole[len(before):]


@torch.no_grad()
def score(model, before, continuation):
    """Log-probability, whether greedy, and whether the context is cut."""
    T = model.config.n_positions
    row = (before + continuation)[-(T + 1):]
    logits = model(torch.tensor([row[:-1]])).logits[0, -len(continuation):].double()
    target = torch.tensor(continuation)
    ll = logits.log_softmax(-1)[torch.arange(len(target)), target].sum().item()
    return ll, bool((logits.argmax(-1) == target).all()), len(before) + len(continuation) - 1 > T


def error_of(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((x - mean)**2 for x in values) / (len(values) - 1) / len(values)) if len(values) > 1 else None


def first_best(scores):
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def per_character(log_probabilities, choices):
    return [x / len(choice) if choice else -math.inf for x, choice in zip(log_probabilities, choices)]


def compare(program, options, model, encode, start, task, path, what):
    with tempfile.TemporaryDirectory() as scratch:
        run = subprocess.run([program, "--eval", model.name_or_path, "--task", task, path, "--out", f"{scratch}/items",
                              "--dtype", "f32", *options], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"check_tasks: {what}: {run.stderr}")
        with open(f"{scratch}/items", encoding="utf-8") as file:
            *events, figures = map(json.loads, file)
    faults, cut, left_out, worst = [], 0, 0, 0.0
    acc, acc_norm, lls = [], [], []
    got = iter(events)
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        context, choices, label = question(task, json.loads(line))
        rows = [split(encode, start, context, choice) for choice in choices]
        if any(len(continuation) > model.config.n_positions for _, continuation in rows):
            left_out += 1
            continue
        ll, greedy, is_cut = zip(*(score(model, *row) for row in rows))
        event = next(got)
        ours = event["log_probabilities"]
        best, best_norm = first_best(ll), first_best(per_character(ll, choices))
        want = [number, label, best, best_norm, greedy[0] if task == "lambada" else None]
        found = [event["line"], event["label"], first_best(ours), first_best(per_character(ours, choices)),
                 event.get("greedy")]
        if found != want or len(ours) != len(ll):
            faults.append(f"line {number}: line, label, choice, choice per character, greedy: {found}, want {want}")
        worst = max([worst] + [abs(a - b) / abs(b) for a, b in zip(ours, ll)])
        cut += any(is_cut)
        acc.append(float(greedy[0] if task == "lambada" else best == label))
        acc_norm.append(float(best_norm == label))
        lls.append(ll[0])
    want = {"items": len(acc), "contexts_cut": cut, "left_out": left_out, "acc": sum(acc) / len(acc),
            "acc_stderr": error_of(acc)}
    if task == "lambada":
        perplexity = math.exp(-sum(lls) / len(lls))
        want |= {"perplexity": perplexity, "perplexity_stderr": perplexity * (error_of(lls) or 0)}
    else:
        want |= {"acc_norm": sum(acc_norm) / len(acc), "acc_norm_stderr": error_of(acc_norm)}
    for name, value in want.items():
        if value is not None and not math.isclose(figures[name], value, rel_tol=1e-4, abs_tol=1e-9):
            faults.append(f"{name}: {figures[name]}, want {value}")
    if worst > 1e-4:
        faults.append(f"log-probabilities differ by {worst:.1e} of their value")
    text = ", ".join(f"{name} {value:.6g}" for name, value in want.items() if value is not None)
    print(f"{'FAIL' if faults else 'ok  '} {what}: {text}; log-probabilities differ by at most {worst:.1e}")
    for fault in faults[:10]:
        print("    " + fault)
    return not faults


def random_model(directory, V, T):
    torch.manual_seed(V)
    config = transformers.GPT2Config(vocab_size=V, n_positions=T, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config)
    for p in model.parameters():          # peaked, unlike initial weights
        p.data += torch.randn_like(p) * 0.1
    model.save_pretrained(directory)
    return directory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/cpu", help="directory of train_gpt")
    parser.add_argument("--model", help="directory of one, of bytes or --tokenizer")
    parser.add_argument("--tokenizer", default="test/reference/bpe", help="directory with tokenizer.json, or with "
                        "vocab.json and merges.txt")
    parser.add_argument("files", nargs="*", metavar="TASK=FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        files = [file.split("=", 1) for file in args.files]
        for task, items in TRICKY.items() if not files else ():
            files.append((task, f"{scratch}/{task}"))
            with open(files[-1][1], "w", encoding="utf-8") as file:
                file.writelines(json.dumps(item, ensure_ascii=i % 2 == 0) + "\n" for i, item in enumerate(items))
        if os.path.exists(f"{args.tokenizer}/tokenizer.json"):
            tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{args.tokenizer}/tokenizer.json")
        else:
            tokenizer = transformers.AutoTokenizer.from_pretrained(args.tokenizer)
        end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        start = end if end is not None else len(tokenizer) - 1

        def bpe(text):
            return tokenizer.encode(text, add_special_tokens=False)

        def utf8(text):
            return list(text.encode())

        kinds = {"bpe": (bpe, start, ["--tokenizer", args.tokenizer]), "bytes": (utf8, ord("\n"), [])}
        if args.model:
            V = transformers.GPT2Config.from_pretrained(args.model).vocab_size
            del kinds["bpe" if V == 256 else "bytes"]
        good = True
        for name, (encode, start, options) in kinds.items():
            directory = args.model or random_model(f"{scratch}/{name}", len(tokenizer) if options else 256, 160)
            model = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float32).eval()
            for task, path in files:
                for batch in ("1", "7"):
                    good &= compare(f"{args.build}/train_gpt", [*options, "--batch", batch], model, encode, start, task,
                                    path, f"{task}, {name}, --batch {batch}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
