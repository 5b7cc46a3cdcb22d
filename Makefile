# `make run` and `make test` are all that a newcomer needs: each does its set-up by itself. The others are below them.
BUILD ?= build
CMAKE_FLAGS ?=
JOBS ?= $(shell nproc)
# What ctest is told, such as TESTS='-R bits' or TESTS='-L unit'.
TESTS ?=

.PHONY: all run test test-gpu faults llama-programs soak programs tests format lint asan tsan fuzz clean

all: programs
	@cmake --build $(BUILD) -j $(JOBS)

# Set-up alone: of what `make run` needs, and of the tests as well.
programs:
	@tools/configure.sh $(BUILD) programs $(CMAKE_FLAGS)

tests:
	@tools/configure.sh $(BUILD) tests $(CMAKE_FLAGS)

run: programs
	@cmake --build $(BUILD) -j $(JOBS) --target guanaco-cli
	@$(BUILD)/bin/guanaco run --expert-cache 8MiB -n 128 -p "Elizabeth had hardly time to"

test: tests
	@cmake --build $(BUILD) -j $(JOBS)
	@tests/run.sh $(BUILD) -j $(JOBS) $(TESTS)

# Experts on a GPU. Without one, on Debian's software device; with one, CMAKE_FLAGS=-DGUANACO_LLAMA_DIR= its llama.cpp.
VULKAN = .deps/llama-vulkan
test-gpu:
	@if [ -n "$(findstring GUANACO_LLAMA_DIR,$(CMAKE_FLAGS))" ] || \
	    { tools/install-tools.sh build vulkan && tools/fetch-llama.sh $(VULKAN) vulkan; }; then \
	    $(MAKE) test BUILD=build-gpu TESTS="--no-tests=error -L gpu" CMAKE_FLAGS="-DGUANACO_TESTS=gpu $(CMAKE_FLAGS) \
	        $(if $(findstring GUANACO_LLAMA_DIR,$(CMAKE_FLAGS)),,-DGUANACO_LLAMA_DIR=$(CURDIR)/$(VULKAN))"; \
	else echo "test-gpu: skipped: it needs a llama.cpp with Vulkan and a Vulkan driver"; fi

# Any call of ours fails, the N-th for every N (`make test` tries some): half an hour. ONLY='run/uring/*,*/malloc' is less.
faults: tests
	@cmake --build $(BUILD) -j $(JOBS)
	@python3 tests/system/fault_matrix.py $(BUILD)/bin/guanaco $(BUILD)/lib/libguanaco.so $(BUILD)/bin/fault_program \
	    $(BUILD)/lib/libfail-nth.so models/guanaco-demo-moe-Q4_0.gguf $(BUILD)/test-faults --all --jobs $(JOBS) \
	    $(if $(ONLY),--only '$(ONLY)')

llama-programs: programs
	@tools/install-tools.sh llama-programs
	@tools/build-llama-programs.sh .deps/llama/src.bundle $(BUILD)/llama $(JOBS)

# llama-server under load for so many minutes (20), within a budget, at small and large batches. See tests/system/soak.py.
soak: tests llama-programs
	@cmake --build $(BUILD) -j $(JOBS) --target guanaco-cli guanaco-synth
	@for ubatch in 512 4096; do \
	    python3 tests/system/soak.py $(BUILD)/bin/guanaco $(BUILD)/llama/bin $(BUILD)/bin/guanaco-synth \
	        $(BUILD)/soak --minutes $(or $(MINUTES),20) --ubatch $$ubatch || exit; \
	done

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

lint: tests
	@tools/install-tools.sh lint
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
	@git ls-files 'src/*.c' 'cli/*.c' | xargs -n 1 -P $(JOBS) clang-tidy --quiet -p $(BUILD) 2>/dev/null

ASAN_FLAGS = -DGUANACO_SANITIZE=address,undefined -DGUANACO_TESTS=sanitizer
asan:
	@$(MAKE) test BUILD=build-asan CMAKE_FLAGS="$(CMAKE_FLAGS) $(ASAN_FLAGS)"

tsan:
	@$(MAKE) test BUILD=build-tsan CMAKE_FLAGS="$(CMAKE_FLAGS) -DGUANACO_SANITIZE=thread -DGUANACO_TESTS=sanitizer"

# New mutants of all that is read, for so many minutes (10) in all. SEED=N repeats a run; the tests run a fixed one.
fuzz:
	@tools/configure.sh build-asan tests $(CMAKE_FLAGS) $(ASAN_FLAGS)
	@cmake --build build-asan -j $(JOBS) --target fuzz fuzz-stock guanaco guanaco-tiny
	@tests/fuzz/fuzz.sh build-asan $(or $(MINUTES),10) $(SEED)

clean:
	@rm -rf build build-asan build-clang build-gpu build-tsan
