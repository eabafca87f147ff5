#!/bin/sh
# scripts/download_shakespeare.sh [FILE] - fetches tinyshakespeare, 1.1 MB of plays, with curl or wget into FILE, or
# into tinyshakespeare.txt of a folder of that name (data/tinyshakespeare.txt when nothing is named), and makes sure
# that it is the text which published figures are about. Does nothing where it lies already.
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
    is_right "$file" || { part=; give_up "$file is there and is another text: remove it, or name another file"; }
    echo "$file is there already"
    exit 0
fi
mkdir -p "$(dirname "$file")"
trap 'rm -f "$part"; exit 1' HUP INT TERM
if command -v curl > /dev/null; then
    curl -fsSL --connect-timeout 20 --max-time 300 -o "$part" "$url" || fetched=no
elif command -v wget > /dev/null; then
    wget -q -T 20 -t 2 -O "$part" "$url" || fetched=no
else
    give_up "neither curl nor wget is here: put any text at $file, by any means, and run ./train_gpt --data $file"
fi
[ "${fetched:-yes}" = yes ] ||
    give_up "could not fetch $url: put any text at $file, by any means, and run ./train_gpt --data $file"
is_right "$part" ||
    give_up "what came from $url is not tinyshakespeare: $(wc -c < "$part") bytes, want $size with SHA-256 $sum"
mv "$part" "$file"
echo "$file: $size bytes, checksum right; now ./train_gpt --data $file"
