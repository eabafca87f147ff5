#!/bin/sh
# download_gpt2.sh [gpt2|gpt2-medium|gpt2-large|gpt2-xl] [DIRECTORY] - Downloads OpenAI's weights (0.5, 1.5, 3.2 or
# 6.4 GB) and tokenizer from HuggingFace to DIRECTORY, by default data/gpt2 (data/gpt2-medium ...), checked against the
# checksums that the server states. The same command continues after an interruption. HF_ENDPOINT names a mirror.
. "$(dirname "$0")/download.sh"
name=${1:-gpt2}
case $name in gpt2|gpt2-medium|gpt2-large|gpt2-xl) ;;
*) give_up "$name: want gpt2, gpt2-medium, gpt2-large or gpt2-xl" ;; esac
to=${2:-data/$name}
for file in config.json vocab.json merges.txt; do
    get "$to/$file" stated "$hub/openai-community/$name/resolve/main/$file"
done
get "$to/model.safetensors" stated "$hub/openai-community/$name/resolve/main/model.safetensors" \
    "./train_gpt --sample $to --prompt 'It was'"
