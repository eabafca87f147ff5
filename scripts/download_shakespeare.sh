#!/bin/sh
# download_shakespeare.sh [FILE] - Downloads tinyshakespeare (1.1 MB) to FILE, or into FILE if that is a
# directory; by default to data/tinyshakespeare.txt.
. "$(dirname "$0")/download.sh"
file=${1:-data/tinyshakespeare.txt}
[ ! -d "$file" ] || file=${file%/}/tinyshakespeare.txt
get "$file" 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
    https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt "./train_gpt $file"
