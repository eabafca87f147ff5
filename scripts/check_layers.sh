#!/bin/sh
# check_layers.sh [ROOT] - Checks the line length (120 columns) and that includes and conditionals follow the
# code layout:
#
#     train_gpt.c, test/, data/  ->  llmc/LAYER/  ->  kernels/*.h  <-  kernels/cpu/, kernels/cuda/
#
# Within llmc/ an include goes to the same layer or a lower one.
# Prints the offending lines as file:line: and "ok" or "FAIL" for each rule; exit code 1 if a rule fails.
LC_ALL=C
export LC_ALL
cd "${1:-$(dirname "$0")/..}" || exit 1
layers='base options text ranks tokens model report train checkpoint use'       # lowest first
all_layers="llmc/($(echo $layers | tr ' ' '|'))"
passed=0 failed=0

# rule NAME OFFENDING-LINES
rule() {
    if [ -z "$2" ]; then passed=$((passed + 1)); echo "ok   $1"
    else failed=$((failed + 1)); printf '%s\n' "$2"; echo "FAIL $1"; fi
}

sources=$(find kernels llmc test data scripts ./*.c -type f 2>/dev/null |
          sed -n 's|^\./||; /\.[ch]$/p; /\.cuh\{0,1\}$/p; /\.cpp$/p' | sort)
[ -n "$sources" ] || { echo "$PWD: no sources here" >&2; exit 1; }

# "file:line dir target" of every quoted include; the target is relative to the root, with .. resolved. An include path
# could hide a dependency: a name that starts at the root is taken as one.
# shellcheck disable=SC2086
includes=$(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' /dev/null $sources | sed -E '
    s@^([^/:]*:)@./\1@
    s@^(([^:]*)/[^/:]*:[0-9]+):[^"]*"((kernels|llmc|test|data|scripts)/[^"]*)".*@\1 \2 \3@
    s@^(([^:]*)/[^/:]*:[0-9]+):[^"]*"([^"]*)".*@\1 \2 \2/\3@
    :up
    s@[^/ ]+/\.\./@@; t up
    s@ ([^ /]*)$@ ./\1@; s@^\./@@')

# arrows DIR ALLOWED: includes of files in DIR whose target is not directly in one of the ALLOWED directories.
arrows() {
    printf '%s\n' "$includes" | awk -v dir="^($1)$" -v allowed="^($2)/[^/]*$" '
        $2 ~ dir && $3 !~ allowed { print $1 ": includes " $3 }'
}

sources_without_rule() {
    printf '%s\n' "$sources" |
        sed -E '\@^((kernels|kernels/(cpu|cuda)(/.*)?|llmc/[a-z]*|test(/[a-z]*)?|data|scripts)/)?[^/]*$@d;
                s/$/:1: no rule covers it/'
}

# Preprocessor lines that match.
lines() {
    # shellcheck disable=SC2086
    grep -niE "^[[:space:]]*#[[:space:]]*$1" /dev/null $sources
}

# A header that only its own .c file and tests include is unused.
unused_headers() {
    for header in llmc/*/*.h; do
        printf '%s\n' "$includes" | awk -v header="$header" -v own="${header%.h}.c:" '
            $3 == header && index($1, own) != 1 && $1 !~ /^test\// { used = 1 }
            END { if (!used) print header ":1: included only by its own .c file and tests" }'
    done
}

files_without_header() {
    for file in llmc/*/*.c; do
        [ -f "${file%.c}.h" ] || echo "$file:1: has no header, so no other file can use it"
    done
}

# shellcheck disable=SC2046,SC2086
long_lines() {
    awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' $sources $(find scripts test -name '*.sh')
}

# Scripts that neither set LC_ALL=C nor source a script that does.
other_locales() {
    grep -LE '^(export )?LC_ALL=C\>|^\. .*/(logs|download|shell)\.sh"$' scripts/*.sh test/*.sh test/*/*.sh |
        sed 's/$/:1: want LC_ALL=C, for the decimal point of sort and mawk/'
}

backend_names='cuda|cublas|cudnn|cutlass|cute/|cub/|cooperative_groups|mma\.h|nccl|nvml|nvtx|nvtools'
backend_headers="include[[:space:]]*[\"<]([^\">]*/)?($backend_names)"
backend_conditionals='(if|ifdef|ifndef|elif)[[:space:](!].*(CUDA|NVCC|NCCL|CUBLAS|GPU|CPU|BACKEND|DEVICE)'

rule 'kernels/ includes kernels/ only'                 "$(arrows 'kernels' 'kernels')"
rule 'kernels/cpu/ includes kernels/ and itself only'  "$(arrows 'kernels/cpu(/.*)?' 'kernels|kernels/cpu(/.*)?')"
rule 'kernels/cuda/ includes kernels/ and itself only' "$(arrows 'kernels/cuda(/.*)?' 'kernels|kernels/cuda(/.*)?')"
lower=
for layer in $layers; do
    lower="$lower|llmc/$layer"
    rule "llmc/$layer/ includes itself, lower layers and kernels/" "$(arrows "llmc/$layer" "kernels$lower")"
done
rule 'programs include llmc/ and kernels/ only'        "$(arrows '\\.|data|scripts' "$all_layers|kernels|data")"
rule 'test/ includes test/, data/, llmc/, kernels/ only' \
     "$(arrows 'test(/[a-z]*)?' "test(/[a-z]*)?|data|$all_layers|kernels")"
rule 'every source is in a directory that has a rule'   "$(sources_without_rule)"
rule 'CUDA, cuBLAS and NCCL headers stay inside kernels/cuda/' \
     "$(lines "$backend_headers" | grep -v '^kernels/cuda/')"
rule 'no conditional on the backend outside kernels/cpu/ and kernels/cuda/' \
     "$(lines "$backend_conditionals" | grep -vE '^kernels/(cpu|cuda)/|^kernels/philox\.h:')"
rule 'no line is longer than 120 columns'              "$(long_lines)"
rule 'every header of llmc/ is used'                   "$(unused_headers)"
rule 'every script has LC_ALL=C'                       "$(other_locales)"
rule 'every file of llmc/ has its header'              "$(files_without_header)"

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
