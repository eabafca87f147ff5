# download.sh - Sourced by the scripts that download: get FILE CHECKSUM URL [NEXT]. With curl or wget, to FILE.part,
# which becomes FILE when its checksum is right; the same command continues a part that was interrupted. CHECKSUM is a
# SHA-256, or "stated": by the server, as HuggingFace does in X-Linked-ETag (the SHA-256 of a large file) or in ETag
# (git's SHA-1 of a small one). A FILE that exists is only compared with a SHA-256. NEXT: what can be done with it, for
# the last line.
set -eu
export LC_ALL=C
case ${1-} in --help|-h) sed -n '2,/^[^#]/s/^# //p' "$0"; exit ;; esac
hub=${HF_ENDPOINT:-https://huggingface.co} hub=${hub%/}         # a mirror, as for huggingface_hub
headers=$(mktemp)
trap 'rm -f "$headers"' EXIT
trap 'give_up interrupted' HUP INT TERM

give_up() { echo "${0##*/}: $1" >&2; exit 1; }

is_right() {      # is_right FILE CHECKSUM
    case ${#2} in
    40) [ "$({ printf 'blob %d\0' "$(wc -c < "$1")"; cat "$1"; } | sha1sum)" = "$2  -" ] ;;
    *) [ "$(sha256sum < "$1")" = "$2  -" ] ;;
    esac
}

stated() {        # the checksum in $headers, of all answers on the way: other ETags of 64 digits are no SHA-256
    tr -d '"\r' < "$headers" | awk '{ name = tolower($1); sub("^W/", "", $2) }
        $2 ~ /[^0-9a-f]/ { next }
        name == "x-linked-etag:" && linked == "" && (length($2) == 64 || length($2) == 40) { linked = $2 }
        name == "etag:" && length($2) == 40 { small = $2 }
        END { print linked != "" ? linked : small }'
}

get() {
    if [ -e "$1" ]; then
        [ "$2" != stated ] || { echo "$1: exists${4:+; next: $4}"; return; }
        is_right "$1" "$2" || give_up "$1 exists and is another file: remove it, or name another place"
    else
        mkdir -p "$(dirname "$1")"
        part=$1.part sum=$2 failed=
        if command -v curl > /dev/null; then
            bar=-s
            [ ! -t 2 ] || bar=-#
            curl -fL $bar --connect-timeout 20 --speed-limit 1 --speed-time 60 -C - -D "$headers" -o "$part" "$3" ||
                failed=$?
        elif command -v wget > /dev/null; then
            wget -c -S -T 60 -t 5 -O "$part" "$3" 2> "$headers" || failed=$?
        else
            give_up "neither curl nor wget found: want $3 at $1"
        fi
        [ "$sum" != stated ] || sum=$(stated)
        if [ -z "$sum" ] || ! is_right "$part" "$sum" 2> /dev/null; then
            answer=$(sed -n 's/^ *\(HTTP[^\r]*\).*/\1/p' "$headers" | tail -n 1)
            case ${failed:-0}:$answer in        # a part that cannot be continued is no use
            0:*|33:*|*" 416"*) rm -f "$part" ;;
            esac
            case $failed:$answer in
            :*) [ -n "$sum" ] || give_up "$3: the server states no checksum, want one of huggingface.co's layout"
                give_up "$3 has another checksum than $sum" ;;
            *:) answer="no answer" ;;
            *" "[1-3]*) answer="it was interrupted" ;;
            esac
            [ -s "$part" ] || rm -f "$part"
            give_up "could not download $3: $answer; the same command continues"
        fi
        mv "$part" "$1"
    fi
    echo "$1: checksum verified${4:+; next: $4}"
}
