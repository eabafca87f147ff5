/* llmc/model_config.h - Which model: a checkpoint's or the one of the options; and the device memory it needs. */
#ifndef LLMC_MODEL_CONFIG_H
#define LLMC_MODEL_CONFIG_H
#include <stdio.h>
#include "../kernels/device.h"
#include "gpt.h"
#include "settings.h"

/* The model of the options, with a vocabulary of V unless --vocab is given; or that of a checkpoint, with --dtype,
   --save-dtype and --deterministic of the options. from: the checkpoint, NULL = none; config: its sizes. Fails when an
   option contradicts the checkpoint, and on sizes that make no model. */
GPTConfig model_config(const Settings *settings, const char *from, const GPTConfig *config, int V);

typedef struct {
    size_t parameters, gradients, optimizer, activations, workspace;   /* bytes on the device */
    size_t total;
    const char *attention;      /* "flash", ...: the one that "auto" stands for */
} MemoryPlan;

/* For batches of B sequences of config->T tokens. */
MemoryPlan memory_plan(const GPTConfig *config, const char *attention, int B, Purpose purpose);

/* The plan. Fails when it needs more than is free; the message names what would fit: flash instead of naive attention,
   or the maximum batch. */
MemoryPlan memory_plan_check(const GPTConfig *config, const char *attention, int B, Purpose purpose);

/* Its total and what is free, a new string: "213 MiB of 7.60 GiB free". */
char *memory_plan_text(const MemoryPlan *plan, const DeviceInfo *device);

/* Every part; host_bytes: of the copy that a checkpoint is written from, 0 = none. */
void memory_plan_print(FILE *file, const MemoryPlan *plan, const DeviceInfo *device, size_t host_bytes);

#endif
