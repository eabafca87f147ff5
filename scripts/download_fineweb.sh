#!/bin/sh
# download_fineweb.sh [SHARDS [edu]] - Downloads the token shards that llm.c trains on from HuggingFace: the validation
# shard and SHARDS of training, 100 M tokens and 0.2 GB each (10; at most 1028), to data/fineweb; with edu those of
# FineWeb-Edu (at most 1001), to data/fineweb-edu. Checksums, interruptions, HF_ENDPOINT: as download_gpt2.sh.
. "$(dirname "$0")/download.sh"
shards=${1:-10} to=data/fineweb name=fineweb repository=chrisdryden/FineWebTokenizedGPT2 max=1028
[ "${2-}" != edu ] || to=data/fineweb-edu name=edu_fineweb max=1001 \
    repository=karpathy/fineweb-edu-100B-gpt2-token-shards
case $shards in *[!0-9]*|?????*) shards=0 ;; esac
[ "$shards" -ge 1 ] && [ "$shards" -le $max ] || give_up "${1-}: want 1 to $max shards"
for number in $(seq 0 "$shards"); do
    file=$(printf '%s_%s_%06d.bin' $name "$([ "$number" = 0 ] && echo val || echo train)" "$number")
    get "$to/$file" stated "$hub/datasets/$repository/resolve/main/$file"
done
echo "next: ./train_gpt '$to/${name}_train_*.bin' --val-data '$to/${name}_val_*.bin' --model gpt2"
