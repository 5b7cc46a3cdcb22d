# The two commands: `make run` and `make test`. Each does all set-up by itself.
BUILD ?= build
CMAKE_FLAGS ?=
JOBS ?= $(shell nproc)

.PHONY: all run test test-gpu llama-programs configure format lint asan tsan clean

all: configure
	@cmake --build $(BUILD) -j $(JOBS)

configure:
	@tools/install-tools.sh
	@[ -e $(BUILD)/CMakeCache.txt ] || cmake -S . -B $(BUILD) $(CMAKE_FLAGS)

run: all
	@$(BUILD)/bin/guanaco run --expert-cache 8MiB -n 128 -p "Elizabeth had hardly time to"

test: all
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS)

# Experts on a GPU. Without one, on Debian's software device; with one, CMAKE_FLAGS=-DGUANACO_LLAMA_DIR= its llama.cpp.
VULKAN = .deps/llama-vulkan
test-gpu:
	@if [ -n "$(CMAKE_FLAGS)" ] || { tools/install-tools.sh libvulkan1 mesa-vulkan-drivers && \
	    tools/fetch-llama.sh $(VULKAN) vulkan; }; then \
	    $(MAKE) all BUILD=build-gpu \
	        CMAKE_FLAGS="$(or $(CMAKE_FLAGS),-DGUANACO_LLAMA_DIR=$(CURDIR)/$(VULKAN)) -DGUANACO_TESTS=gpu" && \
	    cd build-gpu && ctest --output-on-failure --no-tests=error -L gpu; \
	else echo "test-gpu: skipped: it needs a llama.cpp with Vulkan and a Vulkan driver"; fi

llama-programs: configure
	@tools/install-tools.sh g++
	@tools/build-llama-programs.sh .deps/llama/src.bundle $(BUILD)/llama $(JOBS)

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

lint: configure
	@tools/install-tools.sh clang-format clang-tidy
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
	@git ls-files 'src/*.c' 'cli/*.c' | xargs -n 1 -P $(JOBS) clang-tidy --quiet -p $(BUILD) 2>/dev/null

asan:
	@$(MAKE) test BUILD=build-asan CMAKE_FLAGS="-DGUANACO_SANITIZE=address,undefined -DGUANACO_TESTS=sanitizer"

tsan:
	@$(MAKE) test BUILD=build-tsan CMAKE_FLAGS="-DGUANACO_SANITIZE=thread -DGUANACO_TESTS=sanitizer"

clean:
	@rm -rf build build-asan build-gpu build-tsan
