# train_gpt: `make train` trains a small GPT, `make test` runs every test that this machine can run, `make help` lists the rest:
# the lines here that begin with #:
.DEFAULT_GOAL := all
comma := ,
SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

# ---- Detected on this machine; each can be set on the command line: make DEVICE=cpu CC=clang OPENMP=no

DEVICE ?= $(shell command -v nvcc >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
ifeq ($(origin CC),default)
CC     := cc
endif
# compiles and runs: some systems have the compiler's part of OpenMP alone
try     = $(shell mkdir -p build; f=build/try.$$$$; echo 'int main(void) { return 0; }' | $(CC) $(1) -x c -o $$f - \
          >/dev/null 2>&1 && $$f && echo yes; rm -f $$f)
OPENMP ?= $(if $(call try,-fopenmp),yes,no)
NATIVE ?= $(if $(call try,-march=native),-march=native)

BUILD      ?= build/$(DEVICE)
PREFIX     ?= /usr/local
CFLAGS     ?= -O3
CPPFLAGS   := -D_GNU_SOURCE -MMD -MP
# -ffp-contract=fast: under -std=c11 gcc otherwise emits no fused multiply-add, and GEMM takes 1.4 times as long
CFLAGS_ALL := -std=c11 $(CFLAGS) $(NATIVE) -fno-math-errno -ffp-contract=fast -Wall -Wextra $(if $(filter yes,$(OPENMP)),-fopenmp,-Wno-unknown-pragmas)
LDLIBS     := -lm -lpthread -ldl

# ---- The sources. The linker picks the backend.

ifeq ($(DEVICE),cpu)
BACKEND_O  := $(patsubst %.c,$(BUILD)/%.o,$(wildcard kernels/cpu/*.c))
LIBS       :=
NO_NVCC    := $(if $(filter file,$(origin DEVICE)),$(shell command -v nvcc >/dev/null 2>&1 || ! nvidia-smi -L >/dev/null 2>&1 || \
              echo '; this machine has a GPU, but no nvcc in PATH (/usr/local/cuda/bin?)'))
WITH       := $(CC), OpenMP $(OPENMP)$(NO_NVCC)
else ifeq ($(DEVICE),cuda)
# For the GPU of this machine; without one for Ampere, Hopper, and as PTX for newer GPUs.
NVCC       := $(or $(shell command -v nvcc),$(error DEVICE=cuda needs nvcc of the CUDA Toolkit 12.5 or newer in PATH))
CUDA       := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
ARCH       ?= $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | head -n 1))
sm          = -gencode arch=compute_$(1:90=90a),code=sm_$(1:90=90a)
GENCODE    := $(if $(ARCH),$(call sm,$(ARCH)),$(call sm,80) $(call sm,90) -gencode arch=compute_80,code=compute_80)
NVCCFLAGS  := -std=c++17 -O3 -D_GNU_SOURCE -Xcompiler -Wall,-Wextra
# NCCL, for several GPUs: that of NCCL_HOME, else of the toolkit, else of the system. NCCL=no builds without it.
CPPFLAGS   += $(NCCL_HOME:%=-isystem %/include) -isystem $(CUDA)/include
LIBDIRS    := $(foreach dir,$(NCCL_HOME:%=%/lib) $(NCCL_HOME:%=%/lib64) $(CUDA)/lib64,-L$(dir) -Wl,-rpath,$(dir))
NCCL_MAIN  := \#include <nccl.h>\nint main(void) { return ncclCommInitRankConfig(0, 0, (ncclUniqueId){{0}}, 0, 0); }\n
NCCL       ?= $(shell printf '$(NCCL_MAIN)' | $(CC) $(CPPFLAGS) -o /dev/null -x c - $(LIBDIRS) -l:libnccl.so.2 \
              >/dev/null 2>&1 && echo yes || echo no)
NCCL       := $(NCCL)
ifneq ($(NCCL_HOME),)
ifneq ($(NCCL) $(wildcard $(NCCL_HOME)/include/nccl.h),yes $(NCCL_HOME)/include/nccl.h)
$(error NCCL_HOME=$(NCCL_HOME): want include/nccl.h and lib/libnccl.so.2 in it, 2.14 or newer)
endif
endif
NOT_LINKED := kernels/cuda/comm_$(if $(filter yes,$(NCCL)),none,nccl).c
BACKEND_C  := $(filter-out $(NOT_LINKED),$(wildcard kernels/cuda/*.c kernels/cuda/*.cu))
BACKEND_O  := $(patsubst %,$(BUILD)/%.o,$(basename $(BACKEND_C)))
LIBS       := $(LIBDIRS) -lcublas -lcublasLt -lcudart -lstdc++ $(if $(filter yes,$(NCCL)),-l:libnccl.so.2)
WITH       := $(CC), nvcc $(if $(ARCH),for sm_$(ARCH:90=90a),for sm_80$(comma) sm_90a and newer), NCCL $(NCCL)
else
$(error DEVICE=$(DEVICE): no such backend, want cpu or cuda)
endif
OBJECTS    := $(patsubst %.c,$(BUILD)/%.o,$(wildcard kernels/*.c llmc/*/*.c)) $(BACKEND_O)
TESTS      := $(patsubst %.c,$(BUILD)/%,$(wildcard test/*/test_*.c))
link        = @echo "  link $@" && $(CC) $(CFLAGS_ALL) -o $@ $^ $(LDLIBS)
include test/fuzz/fuzz.mk

.PHONY: all train compare test test-kill test-roundtrip test-tasks test-tokenizer lib example bench-attention bench-comm
.PHONY: bench-ring bench-step bench-context bench-scaling bench-tokenizer sanitize reference reference-124M clean help
.PHONY: install uninstall
#:                 build ./train_gpt, ./tokenize and ./curves for this machine
all: $(BUILD)/train_gpt $(BUILD)/tokenize $(BUILD)/curves
	@$(if $(filter build/$(DEVICE),$(BUILD)),for program in train_gpt tokenize curves; do ln -sfn $(BUILD)/$$program .; done)
	@echo "train_gpt is $<: $(WITH)"

# Everything is recompiled when the compiler or its flags change: build/*/settings records them.
SETTINGS   := $(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(NVCCFLAGS) $(GENCODE) $(NCCL)
$(shell mkdir -p $(BUILD) && echo '$(SETTINGS)' | cmp -s - $(BUILD)/settings || echo '$(SETTINGS)' > $(BUILD)/settings)

$(BUILD)/%.o: %.c $(BUILD)/settings
	@mkdir -p $(@D) && echo "  $(CC) $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -c -o $@ $<

# Tests at -O2 compile in 12.5 s of CPU, at -O3 in 19.5; at -O3 GCC 12 for aarch64 fails on three of them.
$(BUILD)/test/%.o: CFLAGS_ALL := $(patsubst -O3,-O2,$(CFLAGS_ALL))

$(BUILD)/%.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D) && echo "  nvcc $<"
	@$(NVCC) $(NVCCFLAGS) $(GENCODE) -MMD -MP -c -o $@ $<

# The page of curves, as a string.
$(BUILD)/report_page.inc: scripts/report_page.html
	@mkdir -p $(@D)
	@{ echo 'static const char template[] ='; sed 's/[\\"?]/\\&/g; s/.*/"&\\n"/' $<; echo ';'; } > $@
$(BUILD)/scripts/curves.o: $(BUILD)/report_page.inc
$(BUILD)/scripts/curves.o: CPPFLAGS += -I$(BUILD)

# wgmma and setmaxnreg exist on sm_90a only; other GPUs never run these files. The build fails if ptxas ignores setmaxnreg
# (C7508), serializes or reorders wgmma (C7510 to C7520), spills, or uses the stack.
SM90_O     := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard kernels/cuda/*_sm90*.cu))
$(SM90_O): $(BUILD)/%.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D) && echo "  nvcc $<"
	@$(NVCC) $(NVCCFLAGS) $(call sm,90) -Xptxas -v -MMD -MP -c -o $@ $< > $@.log 2>&1 || { cat $@.log; exit 1; }
	@! grep -E 'warning|C75[0-9][0-9]|[1-9][0-9]* bytes (spill|stack)' $@.log || { rm $@; exit 1; }

# starts the programs beside it: tokenize makes the tokens of a text, curves writes report.html
$(BUILD)/train_gpt: $(BUILD)/train_gpt.o $(OBJECTS) | $(BUILD)/tokenize $(BUILD)/curves
	$(link) $(LIBS)
$(BUILD)/tokenize: $(patsubst %,$(BUILD)/%.o,data/tokenize data/bpe_train data/shard_writer data/texts \
                     $(addprefix llmc/,base/files base/json base/os options/options text/bpe text/bpe_files tokens/data_files) kernels/check)
	$(link)
$(BUILD)/curves: $(patsubst %,$(BUILD)/%.o,scripts/curves $(addprefix llmc/,report/log_reader base/files base/json base/os) kernels/check)
	$(link)
$(BUILD)/tales: $(patsubst %,$(BUILD)/%.o,data/tales llmc/base/random llmc/base/files llmc/options/options llmc/base/os kernels/check)
	$(link)
$(filter-out %/test_health,$(TESTS)): %: %.o $(BUILD)/test/oracle.o $(OBJECTS)
	$(link) $(LIBS)
$(BUILD)/test/text/test_bpe: $(BUILD)/data/bpe_train.o
$(BUILD)/test/text/test_shards: $(BUILD)/data/shard_writer.o $(BUILD)/data/texts.o | $(BUILD)/test/text/tokenize
# without overlap as well
$(BUILD)/test/model/test_gpt: LIBS += -Wl,--wrap=device_overlap_begin
# counts what is allocated
$(BUILD)/test/run/test_run: LIBS += -Wl,--wrap=device_alloc
# set the health of the device
$(BUILD)/test/run/test_log $(BUILD)/test/run/test_report: LIBS += -Wl,--wrap=device_health
$(BUILD)/test/run/test_log $(BUILD)/test/run/test_report: | $(BUILD)/test/run/curves
$(BUILD)/test/run/curves:    | $(BUILD)/curves
$(BUILD)/test/text/tokenize: | $(BUILD)/tokenize
$(BUILD)/test/run/curves $(BUILD)/test/text/tokenize:
	@mkdir -p $(@D) && ln -sfn ../../$(@F) $@
# needs neither GPU nor CUDA: it loads fake NVML libraries, complete or without one function
$(BUILD)/test/kernels/test_health: $(addprefix $(BUILD)/,test/kernels/test_health.o kernels/cuda/health.o kernels/check.o)
	$(link)
NVML_FAKES := $(patsubst %,$(BUILD)/nvml/%.so,nothing nvmlInit_v2 nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetTemperature \
              nvmlDeviceGetPowerUsage nvmlDeviceGetClockInfo nvmlDeviceGetCurrentClocksThrottleReasons)
$(BUILD)/test/kernels/test_health: | $(NVML_FAKES)
$(NVML_FAKES): $(BUILD)/nvml/%.so: test/kernels/nvml.c $(BUILD)/settings
	@mkdir -p $(@D) && echo "  $(CC) $< without $*"
	@$(CC) -std=c11 -O1 -Wall -Wextra -D$*=other_$* -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o $@ $<
# several processes that compute nothing, with collectives of its own
$(BUILD)/launch_probe: $(BUILD)/test/ranks/launch_probe.o $(filter-out %/comm.o %/comm_nccl.o %/comm_none.o,$(OBJECTS))
	$(link) $(LIBS)

# ---- make train, make test

TALES := build/tales
TALES_RUN := runs/tales
ifeq ($(DEVICE),cuda)
TALES_BYTES := 40000000
TRAIN_OPTIONS ?= --model d12 --dtype bf16 --context 512 --batch 64 --total-batch 0 --steps 1200 --lr 6e-4 --warmup 100 \
	--val-every 300 --prompt "Once " --sample-every 1200 --sample-tokens 500 --temperature 0.6
else
TALES_BYTES := 4000000
TRAIN_OPTIONS ?= --layers 4 --heads 4 --channels 128 --context 128 --batch 8 --steps 1800 --lr 3e-3 --warmup 100 \
	--beta2 0.99 --val-every 600 --prompt "Once " --sample-every 1800 --sample-tokens 120 --temperature 0.6
endif
#: train           generate a text, train a small GPT on it, and sample (replaces runs/tales)
train: all $(BUILD)/tales
	@$(BUILD)/tales --bytes $(TALES_BYTES) --val-bytes 100000 --seed 1 --out $(TALES)
	@rm -rf $(TALES_RUN)
	./train_gpt --data $(TALES)/train.txt --val-data $(TALES)/val.txt --out $(TALES_RUN) $(TRAIN_OPTIONS)
	@scripts/plot_loss.sh $(TALES_RUN) > $(TALES_RUN)/loss.svg && echo "loss curve $(TALES_RUN)/loss.svg"

#: compare         flash, naive, the noise twin, PyTorch: the same loss curve? (DATA=FILE OPTIONS='--steps 1000 --out DIR')
compare: all $(BUILD)/tales
	@DATA='$(DATA)' TALES=$(BUILD)/tales PYTHON=$(PYTHON) scripts/compare.sh $(OPTIONS)

# a program that starts slowly (0.4 s on a GPU, or sanitized) runs a part of the 1,200 cases, another one every second
MALFORMED_STRIDE ?= $(if $(filter cuda,$(DEVICE)),120,1)
# other programs change how much of a GPU's memory is in use
ALONE      := test/run/test_memory.sh
#: test            every test that this machine can run
test: all $(TESTS) $(BUILD)/tales $(BUILD)/faults.so $(BUILD)/launch_probe
	@BUILD=$(BUILD) MALFORMED_STRIDE=$(MALFORMED_STRIDE) test/run.sh \
	    $(filter-out $(ALONE),$(wildcard test/*/test_*.sh)) $(TESTS) scripts/check_layers.sh --alone $(ALONE)

#: test-kill       200 kills at random moments and a fault at every call; resumes bit for bit (half a minute)
test-kill: all $(BUILD)/tales $(BUILD)/faults.so
	@ROUNDS=200 STRIDE=1 BUILD=$(BUILD) sh test/run/test_kill.sh

# Preloaded into train_gpt, not linked, and built without sanitizers, which must be loaded first.
$(BUILD)/faults.so: test/run/faults.c
	@mkdir -p $(@D) && echo "  $(CC) $<"
	@$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -shared -fPIC -o $@ $< -ldl

# What the tests with Python need: test/README.md
PYTHON ?= python3
#: test-roundtrip  checkpoints read by safetensors, transformers and torch (PYTHON=python3, or several)
test-roundtrip: all $(BUILD)/logits
	for python in $(PYTHON); do $$python test/run/check_roundtrip.py --build $(BUILD) || exit 1; done
#: test-tasks      --task compared with torch, item by item (PYTHON=python3)
test-tasks: all
	$(PYTHON) test/text/check_tasks.py --build $(BUILD)
#: test-tokenizer  the tokenizer compared with tiktoken and tokenizers (PYTHON=python3), with TOKENIZER=DIR that one as well
test-tokenizer: all
	$(PYTHON) test/text/check_tokenizer.py --build $(BUILD) $(TOKENIZER:%=--tokenizer %)
#: bench-tokenizer time the tokenizer and tiktoken (PYTHON=python3 TEXT=FILE)
bench-tokenizer: all
	$(PYTHON) test/text/check_tokenizer.py --build $(BUILD) $(TOKENIZER:%=--tokenizer %) --bench '$(or $(TEXT),$(error \
	    bench-tokenizer: want TEXT=FILE))' $(BENCH)

# ---- Library, benchmark, reference data

#: lib             the kernels as a library; the headers are kernels/*.h
lib: $(BUILD)/libtrain_gpt_kernels.a
	@echo "$<: link it with $(filter -fopenmp,$(CFLAGS_ALL)) $(LIBS) $(LDLIBS)"
$(BUILD)/libtrain_gpt_kernels.a: $(filter $(BUILD)/kernels/%,$(OBJECTS))
	@rm -f $@ && ar rcs $@ $^
#: example         build and run an example program that uses the library
example: $(BUILD)/example_attention
	$< && $< naive
$(BUILD)/example_attention: $(BUILD)/test/kernels/example_attention.o $(BUILD)/libtrain_gpt_kernels.a
	$(link) $(LIBS)

# Programs of one file, and what they print: kernels/README.md
$(addprefix $(BUILD)/,bench_attention bench_comm bench_ring): $(BUILD)/%: $(BUILD)/test/bench/%.o $(OBJECTS)
	$(link) $(LIBS)
$(BUILD)/logits: $(BUILD)/test/model/logits.o $(OBJECTS)
	$(link) $(LIBS)
# leaves out transfers and merges
$(BUILD)/bench_ring: LIBS += $(patsubst %,-Wl$(comma)--wrap=%,comm_exchange attention_merge tensor_convert tensor_add)
#: bench-attention time every attention (bf16: on a GPU)
#: bench-comm      bandwidth of the collectives, one process per GPU
#: bench-ring      ring attention, one process per GPU, compared with flash attention of one GPU
bench-attention bench-comm bench-ring: bench-%: $(BUILD)/bench_%
	$< $(BENCH)

DATA_OF = '$(or $(DATA),$(error $@: want DATA='token shards'))'
#: bench-step      the training step of models of all sizes, compared with PyTorch (DATA='dir/train_*.bin')
bench-step: all $(BUILD)/tales
	TALES=$(BUILD)/tales scripts/bench_step.sh $(DATA_OF) $(BENCH)
#: bench-context   the step of 124M over the context, flash, naive, PyTorch eager: speed and memory (DATA=...)
bench-context: all
	@CSV=$(BUILD)/context.csv STEPS=$${STEPS:-20} PEERS="$${PEERS-naive reference-eager}" scripts/bench_step.sh $(DATA_OF) \
	    $(or $(BENCH),$(addprefix d12:,32:512 16:1024 8:2048 4:4096 2:8192 1:16384))
	@scripts/plot_attention.sh $(BUILD)/context.csv speed,memory "train_gpt=flash,naive$$(grep -q reference-eager \
	    $(BUILD)/context.csv && echo ',reference-eager=PyTorch eager')" > $(BUILD)/context.svg
	@echo "picture: $(BUILD)/context.svg"
#: bench-launch    start, heartbeat and end of up to 2,048 ranks that compute nothing
bench-launch: all $(BUILD)/launch_probe
	BUILD=$(BUILD) test/ranks/bench_launch.sh $(BENCH)
#: bench-scaling   the training step on several GPUs compared with one (DATA=... GPUS='2 4 8')
bench-scaling: all
	PEERS='$(patsubst %,gpus-%,$(or $(GPUS),2))' scripts/bench_step.sh $(DATA_OF) \
	    $(or $(BENCH),d12:64:1024 d12:16:1024 d48:16:1024)

#: sanitize        make test under AddressSanitizer and UBSan
sanitize:
	$(MAKE) BUILD=$(BUILD)-sanitize CFLAGS='-O2 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all' MALFORMED_STRIDE=4 test

#: reference       regenerate test/reference (PyTorch, transformers); reference-124M: the same at GPT-2 124M
reference:
	scripts/make_reference.py --out test/reference
	scripts/make_hf_models.py --out test/reference/hf
	scripts/make_tokenizer_reference.py --out test/reference/bpe
reference-124M:
	scripts/make_reference.py --size 124M --out build/reference-124M.safetensors
# Copies what is built, if anything is: under sudo PATH may lack nvcc.
#: install         copy train_gpt, tokenize and curves to PREFIX/bin (PREFIX=/usr/local DESTDIR=); uninstall: remove them
install: $(if $(wildcard train_gpt tokenize curves),,all)
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 755 train_gpt tokenize curves '$(DESTDIR)$(PREFIX)/bin'
uninstall:
	rm -f $(foreach program,train_gpt tokenize curves,'$(DESTDIR)$(PREFIX)/bin/$(program)')

#: clean           remove build/, train_gpt, tokenize and curves; keeps runs/
clean:
	rm -rf build train_gpt tokenize curves
help:
	@sed -n 's/^#: /make /p' Makefile test/fuzz/fuzz.mk
	@echo "Variables: DEVICE=$(DEVICE) CC=$(CC) OPENMP=$(OPENMP) CFLAGS='$(CFLAGS)' NATIVE=$(NATIVE) NCCL=$(NCCL) NCCL_HOME=$(NCCL_HOME)"

-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d)
