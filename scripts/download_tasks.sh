#!/bin/sh
# scripts/download_tasks.sh [DIRECTORY] - Downloads the validation set of HellaSwag (10,042 items, 12 MB, MIT) and
# OpenAI's variant of the test set of LAMBADA (5,153 items, 2 MB, CC BY 4.0) with curl or wget to DIRECTORY, which is
# data by default, and verifies their SHA-256, so that they are the items of published figures. A file that exists is
# only verified.
set -eu
directory=${1:-data}
part=

give_up() {
    [ -z "$part" ] || rm -f "$part"
    echo "download_tasks.sh: $1" >&2
    exit 1
}
is_right() { [ "$(sha256sum < "$1")" = "$2  -" ]; }

# get TASK FILE SHA-256 URL
get() {
    file=$directory/$2
    if [ -e "$file" ]; then
        is_right "$file" "$3" || give_up "$file exists and is another file: remove it, or name another directory"
    else
        part=$file.part
        if command -v curl > /dev/null; then
            curl -fsSL --connect-timeout 20 --max-time 300 -o "$part" "$4" || give_up "could not download $4"
        elif command -v wget > /dev/null; then
            wget -q -T 20 -t 2 -O "$part" "$4" || give_up "could not download $4"
        else
            give_up "neither curl nor wget found: want $4 at $file"
        fi
        is_right "$part" "$3" || give_up "$4 has another SHA-256 than $3"
        mv "$part" "$file"
        part=
    fi
    echo "$file: checksum verified; next: ./train_gpt --eval CHECKPOINT --task $1 $file"
}

mkdir -p "$directory"
trap 'give_up interrupted' HUP INT TERM
get hellaswag hellaswag_val.jsonl 0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588 \
    https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl
get lambada lambada_test.jsonl 4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226 \
    https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl
