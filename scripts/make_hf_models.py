#!/usr/bin/env python3
"""Writes the files that test_import reads: small random GPT-2 models, saved by transformers in every supported layout,
and their logits, losses and gradients computed by transformers.

    python3 -m pip install torch transformers safetensors
    scripts/make_hf_models.py                     into test/reference/hf
    scripts/make_hf_models.py --out build/hf      elsewhere

NAME/ is the output of save_pretrained, without generation_config.json. NAME.expected.safetensors holds ids (B,T) and,
computed in float64 with the model that from_pretrained loads from NAME/, logits (B,T,V), the mean next-token loss, and
its gradients with respect to the token tables, all rounded to f32. Its __metadata__ has the versions.
"""
import argparse
import os
import shutil

import torch
import transformers
from safetensors.torch import save_file

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# shard: max_shard_size. bare: GPT2Model: names without "transformer.", no head. Vocabularies are
# odd: in memory they are padded to multiples of 64.
MODELS = {
    "f32":          dict(L=2, NH=2, C=16, V=65, dtype=torch.float32),
    "f16-bare":     dict(L=2, NH=4, C=16, V=37, dtype=torch.float16, bare=True),
    "bf16-shards":  dict(L=2, NH=2, C=16, V=101, dtype=torch.bfloat16, shard="6KB"),
    "untied":       dict(L=2, NH=2, C=16, V=67, dtype=torch.float32, untied=True),
    "untied-f16-shards": dict(L=1, NH=1, C=16, V=50, dtype=torch.float16, untied=True, shard="4KB"),
    "bf16-bare":    dict(L=1, NH=1, C=64, V=3, dtype=torch.bfloat16, bare=True),
}
B, T, CONTEXT = 2, 9, 12


def draw(model, C):
    """No bias is 0, no layernorm weight is 1, attention is peaked, the logits have a standard deviation of about 1."""
    for name, p in model.named_parameters():
        p.data.normal_(0.0, 0.1 if p.dim() == 1 else 1.2 / C**0.5)
        if ".ln_" in name and name.endswith("weight") or name.startswith("ln_f.weight"):
            p.data += 1.0


def make(directory, seed, L, NH, C, V, dtype, shard="1GB", untied=False, bare=False):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=CONTEXT, n_embd=C, n_layer=L, n_head=NH, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, tie_word_embeddings=not untied)
    model = (transformers.GPT2Model if bare else transformers.GPT2LMHeadModel)(config)
    draw(model, C)
    shutil.rmtree(directory, ignore_errors=True)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    if os.path.exists(f"{directory}/generation_config.json"):
        os.remove(f"{directory}/generation_config.json")

    def loaded(dtype):
        return transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()

    ids = torch.randint(0, V, (B, T))
    exact, single = loaded(torch.float64), loaded(torch.float32)
    assert (exact.lm_head.weight is exact.transformer.wte.weight) != untied
    logits = exact(ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1))
    loss.backward()
    tensors = {"ids": ids.int(), "logits": logits.detach().float(), "loss": loss.detach().float().reshape(1)}
    for name, p in exact.named_parameters():
        if name in ("transformer.wte.weight", "lm_head.weight"):
            tensors["grad." + name] = p.grad.float()
    for file in os.listdir(directory):
        os.chmod(os.path.join(directory, file), 0o644)
    save_file(tensors, f"{directory}.expected.safetensors",
              metadata={"torch": torch.__version__, "transformers": transformers.__version__})
    os.chmod(f"{directory}.expected.safetensors", 0o644)
    with torch.no_grad():
        off = (single(ids, use_cache=False).logits - logits).abs().max() / logits.abs().max()
    print(f"{directory}: {', '.join(sorted(os.listdir(directory)))}; transformers in f32 is off by {off:.1e}")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--out", default="test/reference/hf")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
for seed, (name, model) in enumerate(MODELS.items(), 1):
    make(os.path.join(args.out, name), seed, **model)
