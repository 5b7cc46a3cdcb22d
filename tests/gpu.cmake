# Tests of tiers on a device, for 'make test-gpu' alone: they want a llama.cpp with a GPU's backend, and a software device
# takes minutes. Each says so and is skipped where there is no device.
set(gpu_environment GGML_VK_VISIBLE_DEVICES=0 GUANACO_IMATRIX=off)

# No tier, the dense part on a GPU.
add_session_program(test_gpu)
target_link_libraries(test_gpu PRIVATE m)
add_test(NAME gpu.beside COMMAND test_gpu ${demo_model} $<TARGET_FILE:guanaco>)

add_session_program(test_tiers_on_device)
target_link_libraries(test_tiers_on_device PRIVATE guanaco-core m)
foreach(case text budget faults counters prefill none two odd dense)
    add_test(NAME gpu.${case} COMMAND test_tiers_on_device ${demo_model} $<TARGET_FILE:guanaco> ${test_models} ${case})
    list(APPEND gpu_tests gpu.${case})
endforeach()

# Simulator and engine, tier by tier.
add_test(NAME gpu.simulator COMMAND test_simulator ${demo_model} $<TARGET_FILE:guanaco> ${test_models} Vulkan0)
list(APPEND gpu_tests gpu.simulator)

# Weights of a type that Vulkan does not know.
make_model(ternary guanaco-tiny qwen3moe ${test_models}/ternary.gguf --type TQ1_0)
add_test(NAME gpu.unfit COMMAND test_unfit ${test_models}/ternary.gguf $<TARGET_FILE:guanaco> ${test_models} Vulkan0)
set_tests_properties(gpu.unfit PROPERTIES FIXTURES_REQUIRED ternary)
list(APPEND gpu_tests gpu.unfit)

# Every architecture.
if(NOT GUANACO_SANITIZE)
    add_executable(conformance-device conformance/device.c conformance/harness.c)
    target_link_libraries(conformance-device PRIVATE m)
    add_dependencies(conformance-device guanaco guanaco-tiny conformance-logits)
    add_test(NAME gpu.conformance COMMAND conformance-device $<TARGET_FILE:guanaco-tiny> $<TARGET_FILE:conformance-logits>
             $<TARGET_FILE:guanaco> ${CMAKE_BINARY_DIR}/conformance-device-files)
    list(APPEND gpu_tests gpu.conformance)
endif()
set_tests_properties(gpu.beside ${gpu_tests} PROPERTIES LABELS gpu ENVIRONMENT "${gpu_environment}"
                     TIMEOUT 3000 RUN_SERIAL ON)
