#!/bin/sh
# download_tasks.sh [DIRECTORY] - Downloads the validation set of HellaSwag (10,042 items, 12 MB, MIT) and
# OpenAI's variant of the test set of LAMBADA (5,153 items, 2 MB, CC BY 4.0) to DIRECTORY, by default data.
. "$(dirname "$0")/download.sh"
hellaswag=${1:-data}/hellaswag_val.jsonl lambada=${1:-data}/lambada_test.jsonl
get "$hellaswag" 0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588 \
    https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl \
    "./train_gpt --eval CHECKPOINT --task hellaswag $hellaswag"
get "$lambada" 4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226 \
    https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl \
    "./train_gpt --eval CHECKPOINT --task lambada $lambada"
