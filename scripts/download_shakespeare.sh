#!/bin/sh
# scripts/download_shakespeare.sh [FILE] - Downloads tinyshakespeare (1.1 MB) with curl or wget to FILE, or to
# FILE/tinyshakespeare.txt if FILE is a directory; default data/tinyshakespeare.txt. Verifies size and SHA-256, so that
# it is the text that published figures refer to. Does nothing if the file exists.
set -eu
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
size=1115394
sum=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

file=${1:-data/tinyshakespeare.txt}
if [ -d "$file" ]; then file=${file%/}/tinyshakespeare.txt; fi
part=$file.part

give_up() {
    rm -f "$part"
    echo "download_shakespeare.sh: $1" >&2
    exit 1
}
is_right() {
    [ "$(wc -c < "$1")" -eq $size ] && [ "$(sha256sum < "$1")" = "$sum  -" ]
}

if [ -e "$file" ]; then
    is_right "$file" || { part=; give_up "$file exists and is another text: remove it, or name another file"; }
    echo "$file exists"
    exit 0
fi
mkdir -p "$(dirname "$file")"
trap 'rm -f "$part"; exit 1' HUP INT TERM
if command -v curl > /dev/null; then
    curl -fsSL --connect-timeout 20 --max-time 300 -o "$part" "$url" || fetched=no
elif command -v wget > /dev/null; then
    wget -q -T 20 -t 2 -O "$part" "$url" || fetched=no
else
    give_up "neither curl nor wget found: put any text at $file and run ./train_gpt $file"
fi
[ "${fetched:-yes}" = yes ] ||
    give_up "could not download $url: put any text at $file and run ./train_gpt $file"
is_right "$part" ||
    give_up "$url is not tinyshakespeare: $(wc -c < "$part") bytes, want $size with SHA-256 $sum"
mv "$part" "$file"
echo "$file: $size bytes, checksum verified; next: ./train_gpt $file"
