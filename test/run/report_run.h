/* report_run.h - A run of a few steps for test_log and test_report: what its report gets, prints and writes. */
#pragma once
#include "../scratch.h"
#include "../../llmc/report/report.h"

static char *out;               /* the directory of the run */
static char *log_path, *events_path;

/* ---- The device's health, by --wrap=device_health */

static DeviceHealth health;      /* as the device reports it, and of the steps to come */

DeviceHealth __wrap_device_health(void);
DeviceHealth __wrap_device_health(void) { return health; }

/* ---- A run */

static DeviceInfo device = { .name = "a device", .detail = "of 1 core", .free_bytes = 7LL << 30 };
static const GPTConfig config = { .L = 1, .NH = 2, .C = 4, .T = 8, .V = 16 };
static int64_t layers = 1;
static double rate = 0.0003;
static int flag;
static const char *prompt = "say \"hi\"\\\t";
static const Option options[] = {
    { .name = "layers", .type = OPTION_INTEGER, .value = &layers, .fallback = "1", .role = ROLE_KEPT },
    { .name = "lr", .type = OPTION_REAL, .value = &rate, .fallback = "0.001", .role = ROLE_KEPT },
    { .name = "deterministic", .type = OPTION_FLAG, .value = &flag, .fallback = "no", .role = ROLE_KEPT },
    { .name = "prompt", .type = OPTION_TEXT, .value = &prompt, .fallback = "", .role = ROLE_KEPT },
    {0} };

static int no_validation;                 /* the next runs do not validate */
static Settings settings = { .steps = 100 };
static const char *changes;

static inline RunInfo info_of(const char *command) {
    return (RunInfo){ .settings = &settings, .options = options, .config = &config, .device = &device,
                      .command = command, .data = "input.txt", .memory = 213 << 20,
                      .attention = "flash", .val_floor = 0.5, .resumed_step = -1, .changes = changes };
}

static inline LogRow step_of(int64_t step) {
    return (LogRow){ .step = (double)step, .tokens = 768.0 * (double)step, .loss = 4.0f / (float)step, .norm = 0.5,
                     .lr = 1e-3, .ms = 100, .tokens_per_s = 7680 };
}

/* command: NULL = a run without files. keep: the step of the checkpoint that it resumes; -1 = a new run, -2 = over the
   files of another one. each: what happens before a step is reported, which it may change; NULL = nothing. */
typedef struct { const char *command; int64_t keep, first, last; void (*each)(Report *, LogRow *); } Run;

static inline void open_run(Report *report, const Run *run) {
    static RunInfo info;
    info = info_of(run->command);
    if (run->keep == -1) unlink(log_path), unlink(events_path);
    info.resumed_step = run->keep;
    info.out = run->command ? out : NULL;
    report_open(report, &info);
}

static inline void run_steps(const Run *run) {
    Report report;
    open_run(&report, run);
    for (int64_t step = run->first; step <= run->last; step++) {
        LogRow s = step_of(step);
        report.row_health = health;
        if (run->each) run->each(&report, &s);
        report_step(&report, &s);
        if (step % 10 == 0 && !no_validation) report_validation(&report, step, &(Evaluation){ 1.5, 1, 0 }, 0.5);
    }
    report_close(&report, "done");
}

/* ---- What it writes */

#define PRINTED(call) PRINTED_ON(STDOUT_FILENO, call)

static inline const char *log_text(void) { return text_of(log_path); }

static inline int64_t lines_in(const char *text) {
    int64_t lines = 0;
    for (; (text = strchr(text, '\n')); text++) lines++;
    return lines;
}

/* Line n of log.jsonl, from 0; NULL = there are not so many. */
static inline Json *event_at(int n) {
    const char *text = text_of(events_path);
    while (n-- && text) if ((text = strchr(text, '\n'))) text++;
    return text && *text ? parsed(text, strcspn(text, "\n"), "log.jsonl") : NULL;
}

/* "run step step validation": the events. */
static inline const char *events_text(void) {
    char *text = "";
    Json *event;
    for (int n = 0; (event = event_at(n)); n++) {
        const Json *step = json_find(event, "step");
        text = STRING("%s%s%s%s", text, n ? " " : "", json_string(event, "event"), step ? step->text : "");
    }
    return text;
}

static inline void report_scratch_open(void) {
    scratch_open();
    out = scratch;
    log_path = IN_SCRATCH("log.csv");
    events_path = IN_SCRATCH("log.jsonl");
}
