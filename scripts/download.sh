# download.sh - Sourced by the scripts that download: get FILE SHA-256 URL NEXT. With curl or wget, to
# FILE.part, which becomes FILE when its SHA-256 is right: it is the file that published figures refer to. A FILE that
# exists is only verified. NEXT: what can be done with it, for the last line.
set -eu
export LC_ALL=C
case ${1-} in --help|-h) sed -n '2,/^[^#]/s/^# //p' "$0"; exit ;; esac
part=

give_up() {
    [ -z "$part" ] || rm -f "$part"
    echo "${0##*/}: $1" >&2
    exit 1
}
is_right() { [ "$(sha256sum < "$1")" = "$2  -" ]; }

get() {
    if [ -e "$1" ]; then
        is_right "$1" "$2" || give_up "$1 exists and is another file: remove it, or name another place"
    else
        mkdir -p "$(dirname "$1")"
        part=$1.part
        if command -v curl > /dev/null; then
            curl -fsSL --connect-timeout 20 --max-time 300 -o "$part" "$3" || give_up "could not download $3"
        elif command -v wget > /dev/null; then
            wget -q -T 20 -t 2 -O "$part" "$3" || give_up "could not download $3"
        else
            give_up "neither curl nor wget found: want $3 at $1"
        fi
        is_right "$part" "$2" || give_up "$3 has another SHA-256 than $2"
        mv "$part" "$1"
        part=
    fi
    echo "$1: checksum verified; next: $4"
}
trap 'give_up interrupted' HUP INT TERM
