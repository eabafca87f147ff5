/* attention_list.c - The attentions of the CPU, best first. */
#include "attention_cpu.h"

const Attention *const attention_list[] = { &attention_flash, &attention_naive, NULL };
