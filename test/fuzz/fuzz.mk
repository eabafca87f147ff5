# fuzz.mk - Included by the Makefile. test_fuzz, part of make test, reads the corpus and mutants of it; make fuzz runs
# libFuzzer on the readers, FUZZ_SECONDS in all, and needs clang with its fuzzer.

FUZZ_O    := $(patsubst %,$(BUILD)/%.o,$(addprefix test/fuzz/,fuzz targets curves) data/texts)
# the calls of these go to __wrap_NAME in fuzz.c
FUZZ_WRAP := $(patsubst %,-Wl$(comma)--wrap=%,file_map file_unmap file_exists file_has_name dir_has_file file_create file_close_durably \
             file_rename string_open glob globfree open fclose)

# the page's functions, without the program's main
$(BUILD)/test/fuzz/curves.o: scripts/curves.c $(BUILD)/report_page.inc $(BUILD)/settings
	@mkdir -p $(@D) && $(CC) $(CPPFLAGS) $(CFLAGS_ALL) -I$(BUILD) -Dmain=curves_main -c -o $@ $<
$(BUILD)/test/fuzz/test_fuzz: $(FUZZ_O)
$(BUILD)/test/fuzz/test_fuzz: LIBS += $(FUZZ_WRAP)
$(BUILD)/fuzz: $(BUILD)/test/fuzz/libfuzzer.o $(FUZZ_O) $(OBJECTS)
	$(link) $(LIBS) $(FUZZ_WRAP) -fsanitize=fuzzer

.PHONY: fuzz
FUZZ_SECONDS ?= 600
FUZZ_CC ?= clang
#: fuzz            libFuzzer on the readers, FUZZ_SECONDS=600 in all (clang)
fuzz:
	@echo 'int LLVMFuzzerTestOneInput(const char *b, long n); int LLVMFuzzerTestOneInput(const char *b, long n) { return !b * !n; }' | \
	    $(FUZZ_CC) -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null || { echo "make fuzz: $(FUZZ_CC) -fsanitize=fuzzer \
	does not work here: want clang with its runtime (Debian: clang, libclang-rt-dev), or FUZZ_CC=clang-14"; exit 1; }
	@$(MAKE) --no-print-directory DEVICE=cpu BUILD=build/fuzz CC=$(FUZZ_CC) OPENMP=no NATIVE= CFLAGS='-O1 -g -fno-omit-frame-pointer \
	    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all' build/fuzz/fuzz
	@test/fuzz/run.sh build/fuzz/fuzz $(FUZZ_SECONDS)
