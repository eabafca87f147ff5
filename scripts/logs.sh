# logs.sh - For the scripts that read CSV files: each sources it first. It replaces every argument, a run directory or
# a CSV file, by the path of the CSV file; any other argument ends the script.
LC_ALL=C
export LC_ALL
script=${0##*/}
script=${script%.sh}
# A name on the terminal has no control characters.
fail() { { printf %s "$script: $*" | tr '\001-\037\177' '[?*]'; echo; } >&2; exit 1; }

for run; do
    shift
    file=$run
    if [ -d "$run" ]; then
        file=${run%/}/log.csv
        [ -e "$file" ] || fail "$run: no log.csv in it; want a run's directory or its log.csv"
    fi
    [ -e "$file" ] || fail "$run: no such run; want a run's directory or its log.csv"
    [ ! -d "$file" ] && [ -r "$file" ] || fail "$file: not a readable file"
    [ ! -f "$file" ] || [ -s "$file" ] || fail "$file: empty"
    case $file in /*) ;; *) file=./$file ;; esac        # awk takes a=b.csv for an assignment
    set -- "$@" "$file"
done

# For awk -F,: columns by their names in the first line, of one file after the other.
read_columns='
function stop(message) { print script ": " message | "cat >&2"; failed = 1; exit 1 }
# Not nan or inf, nor so much that a difference is.
function is_number(text) {
    return text ~ /^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$/ && text + 0 < 1e300 && text + 0 > -1e300
}
function printable(text) { gsub(/[\001-\037\177]/, "?", text); return text }
function shown(path) { sub(/^\.\//, "", path); return printable(path) }
function cell(name) { return name in column ? $column[name] : "" }
function want_columns(names, what,   i, count, name) {
    count = split(names, name, " ")
    for (i = 1; i <= count; i++)
        if (!(name[i] in column)) stop(shown(FILENAME) ": not " what ": no column " name[i] " in the first line")
}
# The directory of a log.csv, else the name of the file.
function name_of(path,   part, count) {
    count = split(path, part, "/")
    if (part[count] == "log.csv" && count > 1 && part[count - 1] !~ /^\.?$/) return printable(part[count - 1])
    sub(/\.csv$/, "", part[count])
    return printable(part[count])
}
# "# NAME: ..." of the settings.txt beside a log; "" = none.
function setting_comment(path, name,   line, value) {
    sub(/[^\/]*$/, "settings.txt", path)
    while ((getline line < path) > 0) if (sub("^# " name ": *", "", line)) value = line
    close(path)
    return value
}
# The rows y_at[key, 1 .. n] as points, as in report.html: of more than 1000 rows 2, 4, ... become one. Sets per, the
# rows of a point, and of each its mean, low, high and seen, the number of known y. Returns their number.
function thin(key, n,   i, k, y) {
    split("", seen); split("", low); split("", high)
    for (per = 1; per * 1000 < n; ) per *= 2
    for (i = 1; i <= n; i++) {
        y = y_at[key, i]
        if (y == "") continue
        k = int((i - 1) / per) + 1
        if (!seen[k]++) { low[k] = high[k] = y; mean[k] = 0 }
        mean[k] += (y - mean[k]) / seen[k]
        if (y < low[k]) low[k] = y
        if (y > high[k]) high[k] = y
    }
    return int((n + per - 1) / per)
}
# The running mean at a point: of a hundredth of all on either side, as many on the left as on the right but at the end.
function running_mean(k, points,   half, from, i, total, count) {
    half = int(points / 100)
    from = k > half ? k - half : 1
    for (i = from; i <= 2 * k - from && i <= points; i++) if (seen[i]) { total += mean[i]; count++ }
    return total / count
}
{ sub(/\r$/, "") }
FNR == 1 {
    split("", column)
    for (i = 1; i <= NF; i++) column[$i] = i
}
'
