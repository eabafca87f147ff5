/* test_malformed.c - Over 2,000 malformed inputs for the real program: options, token shards, checkpoints, texts.
   Each must end with exit code 1 and one line on stderr, and leave every file that was there as it was. Sound inputs
   that differ from them in the flaw alone run first. The program is $BUILD/train_gpt; $TEST_SEED draws other
   cases; $MALFORMED_STRIDE=4 runs every fourth, from one that varies with the time, for a build that starts slowly. */
#include <fcntl.h>
#include <time.h>
#include "malformed_checkpoints.h"

/* ---- Options */

static void option_case(const Listed *o, const char *value, int joined, const char *what) {
    base_without(format(" %s ", o->name));
    if (joined) word(format("--%s=%s", o->name, value));
    else { word(format("--%s", o->name)); word(value); }
    refused(NULL, what);
}

static void unknown_options(void) {
    static const char *const tails[] = { "s", "-", "_", "2", "\x1b[2J", "\302\23331m" };
    for (int i = 0; i < 3 * listed_count; i++) {
        char name[80];
        strcpy(name, listed[i / 3].name);
        size_t length = strlen(name), place = (size_t)draw((int64_t)length);
        int kind = draw(6), is_typo = length > 4 && kind != 4;
        switch (kind) {
        case 0:  memmove(name + place, name + place + 1, length - place); break;
        case 1:  memmove(name + place + 1, name + place, length - place + 1); break;
        case 2:  name[place] = (char)('a' + draw(26)); break;
        case 3:  name[place] = (char)toupper((unsigned char)name[place]); break;
        case 4:  name[length - 1 - length / 3] = 0; break;
        default: strcat(name, ANY(tails)); is_typo = length > 4 && strlen(name) == length + 1;
        }
        if (!*name || is_listed(name)) continue;
        base_without(" ");
        word(format(draw(2) ? "--%s=1" : "--%s", name));
        refused(is_typo ? "did you mean --" : NULL, "an option that there is not");
    }
}

static void bad_numbers(void) {
    static const char *const neither[] = {
        "abc", "1x", "x1", "1 2", " 1", "1 ", "0x10", "0b1", "1e", "1e+", "nan", "NaN", "inf", "-inf", "infinity",
        "1e400", "-1e400", "1..2", "1.2.3", "1,5", "1_000", "-", "+", ".", "e5", "1\n", "\t1", "1\x1b[0m", "\xc2\xb2",
        "one", "1kk", "1m", "k", "50%", "1/2", "$1", "--1", "1-1", "99999999999999999999999999999999",
        "-9223372036854775809", "18446744073709551616",
    };
    static const char *const integers[] = {
        "layers", "heads", "channels", "context", "vocab", "steps", "batch", "seed", "total-batch", "warmup",
        "threads", "val-every", "save-every", "sample-tokens", "top-k",
    };
    char *digits = calloc(1, 100001), *letters = calloc(1, 100001);
    memset(digits, '9', 100000);
    memset(letters, 'A', 100000);
    for (int i = 0; i < listed_count; i++) {
        const Listed *o = &listed[i];
        if (!is_number(o)) continue;
        EXPECT(o->has_range, "--help gives no range for --%s", o->name);
        for (int n = 0; n < 4; n++) option_case(o, ANY(neither), draw(2), "no number");
        option_case(o, format("%.0f", o->least - 1 - draw(1000)), draw(2), "below the range");
        option_case(o, format("%.0f", 10 * o->most + 1 + draw(1000)), draw(2), "above the range");
        option_case(o, draw(2) ? digits : letters, draw(2), "100,000 characters for a number");
    }
    for (int i = 0; i < COUNT(integers); i++) {
        static const char *const broken[] = { "1.5", "1.05e1", "25e-1", "1e-3", ".5", "0.0015k", "0.1Ki" };
        for (int n = 0; n < 2; n++) {
            base_without(format(" %s ", integers[i]));
            words(format("--%s %s", integers[i], ANY(broken)));
            refused(format("--%s", integers[i]), "no integer");
        }
    }
    free(digits);
    free(letters);
}

static void bad_words(void) {
    static const char *const stray[] = {
        "word", "-x", "-", "--", "--=3", "", "steps=3", "\xe2\x80\x94steps", "train", "-5", "-steps", "---steps", "/",
        "text.txt", "\x1b[31m", "\n", "a\nb", "--\n", "--\x7f", "= 3", "-v", "?", "help",
    };
    static const char *const choices[][6] = {
        { "dtype", "fp32", "F32", "f32|bf16", "f32 ", "double" },
        { "attention", "fast", "auto|", "flash2", "Naive", "flas" },
        { "schedule", "cos", "constant", "wsd\n", "linear,wsd", "COSINE" },
        { "model", "d5", "gpt3", "D12", "d012", "\x1b[1m" }, { "model", "12", "d12 ", "d", "d48x", "124M" },
    };
    for (int i = 0; i < COUNT(stray); i++) {
        base_without(" ");
        word(stray[i]);
        refused(NULL, "a stray word at the end");
        word(stray[i]);
        base_without(" ");
        refused(NULL, "a stray word in front");
    }
    for (int i = 0; i < COUNT(choices); i++)
        for (int n = 1; n < 6; n++) {
            base_without(" ");
            word(format("--%s", choices[i][0])), word(choices[i][n]);
            refused(format("--%s", choices[i][0]), "no such choice");
        }
    for (int i = 0; i < listed_count; i++) {
        const Listed *o = &listed[i];
        base_without(format(" %s ", o->name));
        if (*o->argument) words(format("--%s %s --%s=%s", o->name, good_value(o), o->name, good_value(o)));
        else              words(format("--%s --%s", o->name, o->name));
        refused(format("--%s: given twice", o->name), "an option twice");
        base_without(format(" %s ", o->name));
        word(format("--%s", o->name));
        if (!*o->argument) word(ANY(((const char *const[]){ "yes", "1", "true" })));
        refused(NULL, *o->argument ? "the value is missing at the end" : "a flag with a word behind it");
        if (!*o->argument) {
            option_case(o, ANY(((const char *const[]){ "1", "true", "maybe", "YES", "y" })), 1, "a flag with a value");
            continue;
        }
        word(format("--%s", o->name));
        base_without(format(" %s ", o->name));
        refused(format("--%s: want a value", o->name), "the value is missing in front of another option");
        if (strcmp(o->name, "prompt")) option_case(o, "", draw(2), "an empty value");
    }
}

static void contradictions(void) {
    for (int i = 0; i < 15; i++) {
        int heads = 2 + draw(30), channels = heads * (1 + draw(8)) + 1 + draw(heads - 1);
        base_without(" heads channels "), words(format("--heads %d --channels %d", heads, channels));
        refused("want a divisor of --channels", "channels and heads");
        base_without(" heads channels "), words(format("--heads %d --channels %d", 17 + draw(1000), 1 + draw(16)));
        refused("heads", "more heads than channels");
        base_without(""), words(format("--total-batch %d", 16 * draw(1000) + 1 + draw(15)));
        refused("want a multiple", "a total batch in pieces");
        base_without(""), words(format("--vocab %d", 1 + draw(255)));
        refused("256", "a vocabulary that bytes do not fit");
    }
    static const char *const alone[] = {
        "--eval run --sample run --data text.txt", "--resume --out nowhere --init run",
        "--eval run --data text.txt --resume", "--eval run --data text.txt --init run", "--sample run --resume",
        "--sample run --init run", "--resume", "--resume --data nowhere", "--resume --out nowhere",
        "--resume --out dir", "--resume --out text.txt", "--eval run", "--eval run --sample-tokens 3", "--dry-run",
        "--layers 1", "--data text.txt --dtype bf16", "--eval run --data text.txt --dtype bf16",
        "--sample run --dtype bf16", "--eval nowhere --data text.txt", "--sample nowhere",
        "--data text.txt --init nowhere", "--eval dir --data text.txt", "--sample dir",
        "--data text.txt --init dir", "--eval text.txt --data text.txt", "--sample text.txt",
        "--eval run/log.csv --data text.txt", "--sample good16.bin", "--sample /dev/null", "--data /dev/null",
        "--data /dev/zero", "--eval run --data nowhere", "--eval run --val-data nowhere --data text.txt",
        "--out run --data text.txt",
    };
    for (int i = 0; i < COUNT(alone); i++) {
        words(alone[i]), words("--threads 1");
        refused(NULL, "options that do not go together, or nothing to work on");
    }
    static const char *const large[] = {
        "--model d48 --batch 1048576 --context 1024", "--model d48 --context 16777216",
        "--batch 1048576 --context 16777216",
        "--layers 1000 --heads 65536 --channels 65536 --context 16777216 --batch 1048576",
        "--layers 1000 --heads 1024 --channels 65536 --context 16777216 --batch 1048576 --attention naive",
        "--layers 1000 --heads 512 --channels 65536", "--model d24 --context 16777216",
        "--model d2 --attention naive --context 16777216", "--model d12 --batch 1048576",
        "--model d36 --context 8388608",
    };
    for (int i = 0; i < COUNT(large); i++)
        for (int dry = 0; dry < 2; dry++) {
            words("--data text.txt --threads 1"), words(large[i]);
            if (dry) words("--dry-run");
            refused("--batch", "a model that no memory holds");
        }
    static const char *const prompts[] = {
        "word", "1 2 x", "100", "99 100", "-1", "1,2", "1.0", "0x1", "+1", "\x1b[31m", "1\x07",
        "99999999999999999999999", "1 2 3 4 5 6 7 8 9 10 11 1000", "\xc2\x9b", "1 -", "'1'",
    };
    for (int i = 0; i < COUNT(prompts); i++) {
        words("--sample ids --sample-tokens 1 --threads 1 --prompt"), word(prompts[i]);
        refused("prompt", "a prompt that is no list of ids below 100");
    }
}

static void bad_paths(void) {
    static const char *const takes_path[] = { "data", "val-data", "init", "eval", "sample" };
    static const char *const nasty[] = {
        "\x1b[31mred", "a\nb", "a\rb", "\x7f", "\x01\x02\x03", "\302\2332J", "\xff\xfe", "%s%n%d", "[", "no*", "??",
        "no*.bin", "/", ".", "..", "dir/", "text.txt/x", "//", "nowhere/x", "~", "{a,b}",
    };
    char *lengthy = calloc(1, 100001);
    memset(lengthy, 'A', 100000);
    for (int i = 0; i < COUNT(takes_path); i++) {
        const char *option = takes_path[i];
        for (int n = 0; n <= COUNT(nasty); n++) {
            base_without(!strcmp(option, "data") || !strcmp(option, "sample") ? " data " : "");
            word(format("--%s", option)), word(n < COUNT(nasty) ? nasty[n] : lengthy);
            refused(n < COUNT(nasty) ? NULL : "A: ", "a path that leads to nothing of the kind");
        }
    }
    base_without(""), word("--out"), word(lengthy);
    refused("A: ", "a directory with a name of 100,000 bytes");
    free(lengthy);
}

static void malformed_options(void) {
    begin_family("options");
    read_help();
    unknown_options();
    bad_numbers();
    bad_words();
    contradictions();
    bad_paths();
    end_family(700);
}

/* ---- Token shards */

static const char *break_shard(int width) {
    int64_t bytes = (int64_t)blob.size;
    int kind = draw(13), n;
    switch (kind) {
    case 0:
        word32(blob.bytes, (uint32_t)(n = draw(INT32_MAX) / 2 * 2 + 1));       /* the true ones are even */
        return format("magic %d", n);
    case 1:
        n = 1 << draw(31);
        word32(blob.bytes, (width == 2 ? 20240520u : 20240801u) ^ (uint32_t)n);
        return format("magic with the bit %d turned", n);
    case 2:
        n = draw(4) ? draw(1 << 30) + 8 : width == 2 ? 7 : 0;
        word32(blob.bytes + 4, (uint32_t)n);
        return format("version %d", n);
    case 3:
        n = SHARD_TOKENS + 1 + (draw(2) ? draw(100) : draw(INT32_MAX - 1000));
        word32(blob.bytes + 8, (uint32_t)n);
        return format("promises %d tokens", n);
    case 4:
        word32(blob.bytes + 8, (uint32_t)(n = draw(SHARD_TOKENS)));
        return format("promises only %d tokens", n);
    case 5:
        word32(blob.bytes + 8, (uint32_t)(n = -1 - draw(INT32_MAX)));
        return format("promises %d tokens", n);
    case 6:
        word32(blob.bytes, width == 2 ? 20240801 : 20240520);
        n = draw(SHARD_TOKENS) * 2 + 1;
        blob.size = 1024 + (size_t)n;
        return format("the other width, %d bytes of tokens", n);
    case 7: case 8:
        blob.size = (size_t)draw(kind == 7 ? bytes : 1024);
        return format("truncated to %zu bytes", blob.size);
    case 9:
        for (n = 1 + draw(3000); blob.size < (size_t)(bytes + n); ) blob.bytes[blob.size++] = (unsigned char)draw(256);
        return format("%d bytes behind its end", n);
    case 10:
        for (int i = 0; i < 1024; i += 4) {
            unsigned char *b = blob.bytes + i, first = b[0], second = b[1];
            b[0] = b[3], b[3] = first, b[1] = b[2], b[2] = second;
        }
        n = draw(SHARD_TOKENS);
        blob_token(width, n, (uint32_t)draw(VOCAB));
        return format("big-endian, token %d another", n);
    case 11:
        n = draw(40) * 4 + 4;
        memmove(blob.bytes + n, blob.bytes, blob.size);
        memset(blob.bytes, 0, (size_t)n);
        blob.size += (size_t)n;
        return format("begins %d bytes late", n);
    default:
        return format("this is %s, %zu bytes", blob_foreign(), blob.size);
    }
}

static const char *bad_id(int width) {
    uint32_t id = VOCAB + (uint32_t)draw(width == 2 ? 65536 - VOCAB : 1 << 20);
    if (width == 4 && draw(2)) id = 0x80000000u + (uint32_t)draw(INT32_MAX);
    int place = draw(SHARD_TOKENS);
    blob_token(width, place, id);
    return format("token %d is id %u", place, id);
}

static void shard_command(int role) {
    if (role < 3) base_without(" data "), words("--vocab 100 --out new");
    if (role == 0) words("--data broken.bin");
    if (role == 1) words("--data good16.bin --val-data broken.bin");
    if (role == 2) words("--data set/*.bin");
    if (role == 3) words("--eval ids --threads 1 --batch 2 --data broken.bin");
    if (role == 4) words("--eval ids --threads 1 --batch 2 --val-data broken.bin --data good16.bin");
}

static void malformed_shards(void) {
    begin_family("token shards");
    for (int i = 0; i < 590; i++) {
        int width = draw(2) ? 2 : 4, role = draw(5);
        const char *what, *path = "broken.bin";
        if (role == 2) {                 /* one of three files is broken */
            make_dir("set");
            for (int n = 0; n < 3; n++) {
                blob_shard(width, SHARD_TOKENS);
                save(format("set/%d.bin", n), &blob);
            }
            remove_tree(path = format("set/%d.bin", draw(3)));
        }
        blob_shard(width, SHARD_TOKENS);
        int kind = draw(10);
        if (kind < 6)       what = break_shard(width), save(path, &blob);
        else if (kind < 8)  what = bad_id(width), save(path, &blob);
        else if (kind == 8 && role == 2) {
            blob_shard(6 - width, SHARD_TOKENS);
            what = "a shard of the other width among them";
            save(path, &blob);
        } else if (kind == 8) {
            blob_shard(width, 1);
            what = format("one token of %d bytes", width);
            save(path, &blob);
        } else if (role == 2) {
            what = "a text among them, by its name a shard";
            put_text(path, format("some text %d that is long enough", draw(100)));
        } else {
            what = no_file(path);
        }
        what = format("%s (%s)", what, path);
        shard_command(role);
        refused(NULL, what);
        remove_tree("set");
        remove_tree("broken.bin");
    }
    static const char *const mixed[] = {
        "--data text.txt --val-data good16.bin", "--data good16.bin --val-data text.txt",
        "--data good32.bin --val-data text.txt", "--data good*.bin", "--data good16.bin --vocab 99",
        "--data good32.bin --vocab 2", "--data none*.bin", "--data good16.bin --vocab 100 --val-data none*",
        "--data good16.bin --vocab 1", "--data directory --vocab 100",
    };
    for (int i = 0; i < COUNT(mixed); i++) {
        base_without(" data "), words(mixed[i]);
        refused(NULL, "files of two kinds, or none");
    }
    end_family(450);
}

/* ---- Texts, and where the results should go */

static void text_command(int role) {
    if (role == 0) base_without(" data "), words("--data broken.txt --out new");
    if (role == 1) base_without(""), words("--val-data broken.txt --out new");
    if (role == 2) words("--eval run --threads 1 --batch 2 --data broken.txt");
    if (role == 3) words("--eval run --threads 1 --batch 2 --data text.txt --val-data broken.txt");
}

static void strange_texts(void) {
    for (int i = 0; i < 130; i++) {
        const char *what = format("this is %s, %zu bytes", blob_foreign(), blob.size);
        save("broken.txt", &blob);
        text_command(draw(4));
        refused("broken.txt", what);
    }
    for (int i = 0; i < 40; i++) {
        remove_tree("broken.txt");
        const char *what = no_file("broken.txt");
        text_command(i % 4);
        refused("broken.txt", what);
        remove_tree("broken.txt");
        blob_noise(1);
        blob.bytes[0] = (unsigned char)(' ' + draw(90));
        save("broken.txt", &blob);
        text_command(draw(4));
        refused("broken.txt", format("the one byte %d", blob.bytes[0]));
    }
    for (int i = 0; i < 50; i++) {       /* a part of at most one byte */
        int count = 2 + draw(40);
        double fraction = draw(2) ? 0.95 / count * (1 + draw(1000)) / 1000 : 0.9;
        if (fraction == 0.9) count = 2 + draw(17);
        blob_noise(count);
        for (int n = 0; n < count; n++) blob.bytes[n] = (unsigned char)('a' + n % 26);
        save("broken.txt", &blob);
        text_command(0), words(format("--val-fraction %.6f", fraction));
        refused("too few", format("%d bytes", count));
    }
    for (int i = 0; i < 12; i++) {
        int place = draw(500);
        load(&blob, "text.txt");
        for (size_t n = 0; n < blob.size; n++) blob.bytes[n] = ' ';
        blob.bytes[place] = (unsigned char)(VOCAB + draw(156));
        save("broken.txt", &blob);
        words("--eval ids --threads 1 --batch 2 --data broken.txt");
        refused("broken.txt", format("byte %d is %d, the model has %d", place, blob.bytes[place], VOCAB));
    }
    remove_tree("broken.txt");
}

static void broken_floors(void) {
    static const char *const floors[] = {
        "", "abc", "-1", "nan", "-nan", "inf", "1e400", "nats 1.5", "-0.5 nats per byte", "\n\n", "\x1b[31m", ",5",
        "{\"floor\": 1}", "\xff\xfe", "-inf", "x1.5", "--1", "+-2", "e5", "a floor", "1000", "7.5", "\x80\x02",
    };
    load(&blob, "text.txt");
    save("broken.txt", &blob);
    for (int i = 0; i < COUNT(floors); i++) {
        put_text("broken.txt.floor", floors[i]);
        text_command(1);
        refused(NULL, format("a floor of \"%s\"", floors[i]));
    }
    for (int i = 0; i < 12; i++) {
        blob_foreign();
        blob.bytes[0] |= 0x80;           /* no number, no space */
        save("broken.txt.floor", &blob);
        text_command(1);
        refused("broken.txt.floor", format("a floor of %zu bytes of noise", blob.size));
    }
    remove_tree("broken.txt.floor");
    make_dir("broken.txt.floor");
    text_command(1);
    refused("broken.txt.floor", "a directory for a floor");
    remove_tree("broken.txt.floor");
    remove_tree("broken.txt");
}

static void bad_outs(void) {
    static const char *const outs[] = {
        "text.txt", "text.txt/", "text.txt/under", "text.txt/a/b/c", "good16.bin", "/proc/none", "/dev/null",
        "/dev/null/x", "run", "run/", "./run", "dir/../run", "ids", "dangling", "itself", "pipe",
        "run/log.csv", "run/" STEP "/config.json", "/proc/self/fd/none",
    };
    int bad = symlink("nowhere", "dangling") || symlink("itself", "itself") || mkfifo("pipe", 0600);
    if (bad) fail("cannot prepare a test");
    for (int i = 0; i < COUNT(outs); i++)
        for (int with = 0; with < 3; with++) {
            base_without(" data ");
            words(format("--out %s", outs[i]));
            words(with == 2 ? "--data good16.bin --vocab 100" : "--data text.txt");
            if (with == 1) words("--init run");
            refused(NULL, "an --out where nothing can be written");
        }
    base_without(""), words("--out"), word(format("new%0300d", 0));
    refused(NULL, "a name of 303 bytes");
    make_dir("new"), make_dir("new/log.csv");
    base_without(""), words("--out new");
    refused("log.csv", "a directory in the place of the log");
    remove_tree("dangling"), remove_tree("itself"), remove_tree("pipe");
}

static void malformed_texts(void) {
    begin_family("texts and places");
    strange_texts();
    broken_floors();
    bad_outs();
    end_family(280);
}

static void all_are_there(void) {
    printf("     %d different cases, %d of them run, seed %llu\n", cases, cases_run, (unsigned long long)seed);
    EXPECT(cases >= 2000, "%d different cases, want 2,000", cases);
    EXPECT(cases_run >= cases / stride, "%d cases run of %d, every %d", cases_run, cases, stride);
}

int main(void) {
    const char *other_seed = getenv("TEST_SEED"), *other_stride = getenv("MALFORMED_STRIDE");
    program = realpath(built("train_gpt"), NULL);
    if (!program) fail("no program to test: want BUILD=FOLDER with train_gpt in it");
    if (other_seed) seed = strtoull(other_seed, NULL, 10);
    if (other_stride && atoi(other_stride) > 1) stride = atoi(other_stride);
    phase = (int)(time(NULL) % stride);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    capture[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    capture[1] = memfd_create("stdout", MFD_CLOEXEC);
    capture[2] = memfd_create("stderr", MFD_CLOEXEC);

    scratch_open();
    char *home = getcwd(NULL, 0);
    if (!home || chdir(scratch)) fail("%s: cannot go there", scratch);
    write_sound_inputs();
    RUN(sound_inputs);
    if (!test_failed) {
        RUN(malformed_options);
        RUN(malformed_shards);
        RUN(malformed_checkpoints);
        RUN(malformed_texts);
        RUN(all_are_there);
    }
    if (chdir(home)) fail("%s: cannot go back there", home);
    for (int i = 0; i < listed_count; i++) free(listed[i].help);
    free(home);
    free(program);
    return test_close();
}
