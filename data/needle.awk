# needle.awk - A text that only a long context can predict, from one of data/tales: after every line of a tale
# come a name with a random word, and two earlier ones with theirs, fewer than `far` lines back, near ones most often.
#
#     Remember: cab mel.
#     Recall: fod gir.
#
# A line has some 237 bytes with these three: 150 lines are about 35,000. Names come back after 2000 lines. The word is
# one of 2000, so a model that does not see its first occurrence has 1 chance in 2000. Writes the text to stdout and
# `items` questions, each about a word from `far` lines before that has not been repeated since, to `file`, for --eval
# --task multiple-choice: the choices are the word and those of the next three lines.
#
#     awk -f data/needle.awk -v far=150 -v seed=1 TALES/train.txt > train.txt
#     awk -f data/needle.awk -v far=150 -v seed=2 -v items=100 -v file=items.jsonl TALES/val.txt > val.txt
function random(n) {            # 0 .. n - 1; Lehmer's generator: the same in every awk
    state = state * 48271 % 2147483647
    return int(state / 2147483647 * n)
}
function syllable(n) {          # of 2000
    return substr(consonants, n % 20 + 1, 1) substr("aeiou", int(n / 20) % 5 + 1, 1) \
           substr(consonants, int(n / 100) % 20 + 1, 1)
}
# A line of JSON: the lines from `far` back on, without those that recall the first word, and the question about it.
function write_item(    first, i, text, right) {
    first = told - far
    for (i = first; i <= told; i++) text = text lines[i]
    gsub("Recall: " syllable(first) " " word[first] "[.]\n", "", text)
    gsub(/\\/, "&&", text)
    gsub(/"/, "\\\"", text)
    gsub(/\n/, "\\n", text)
    right = random(4)
    printf "{\"context\": \"%sRecall: %s\", \"choices\": [", text, syllable(first) > file
    for (i = 0; i < 4; i++) printf "%s\"%s\"", i ? ", " : "", word[first + (i + 4 - right) % 4] > file
    printf "], \"label\": %d}\n", right > file
    written++
}
BEGIN {
    far += 0
    if (far < 4 || far > 1999) { print "needle.awk: -v far=N: want 4 to 1999 lines" > "/dev/stderr"; exit 1 }
    consonants = "bcdfghjklmnpqrstvwxz"
    state = 1 + seed * 7919 % 2147483646
    for (i = 0; i < 20; i++) random(2)
}
!NF { print; lines[told] = lines[told] "\n"; next }
{
    word[++told] = syllable(random(2000))
    lines[told] = $0 "\nRemember: " syllable(told) " " word[told] ".\n"
    if (told > far && written < items && told % int(far / 4) == 0) write_item()
    for (i = 0; i < 2; i++) {
        back = told - int(far ^ (random(10000) / 10000))
        if (back > 0) lines[told] = lines[told] "Recall: " syllable(back) " " word[back] ".\n"
    }
    printf "%s", lines[told]
    delete lines[told - far - 1]
}
