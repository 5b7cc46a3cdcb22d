# Where llama.cpp comes from: the pinned packages (tools/fetch-llama.sh), or GUANACO_LLAMA_DIR. Defines
#   llama-headers  the headers alone (for the plugin)
#   llama          headers, libllama, libggml and libggml-base, found again at run time
if(GUANACO_LLAMA_DIR)
    set(llama_dir ${GUANACO_LLAMA_DIR})
else()
    set(llama_dir ${CMAKE_SOURCE_DIR}/.deps/llama)
    execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/fetch-llama.sh ${llama_dir} RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "cannot fetch the pinned llama.cpp; -DGUANACO_LLAMA_DIR=<dir> uses one of your own")
    endif()
endif()

set(llama_includes)
foreach(header llama.h ggml.h ggml-backend-impl.h)
    find_path(LLAMA_${header}_DIR ${header} PATHS ${llama_dir}/include ${llama_dir}/ggml/include ${llama_dir}/ggml/src
              NO_DEFAULT_PATH)
    if(NOT LLAMA_${header}_DIR)
        message(FATAL_ERROR "${llama_dir} has no ${header} in include/, ggml/include/ or ggml/src/")
    endif()
    list(APPEND llama_includes ${LLAMA_${header}_DIR})
endforeach()
list(REMOVE_DUPLICATES llama_includes)

set(llama_libraries)
foreach(name llama ggml ggml-base)
    file(GLOB found ${llama_dir}/lib/lib${name}.so ${llama_dir}/lib/lib${name}.v*.so ${llama_dir}/lib/lib${name}.vulkan.v*.so ${llama_dir}/bin/lib${name}.so
         ${llama_dir}/build/bin/lib${name}.so)
    list(LENGTH found count)
    if(NOT count)
        message(FATAL_ERROR "${llama_dir} has no lib${name}.so in lib/, bin/ or build/bin/")
    endif()
    list(GET found 0 first)
    list(APPEND llama_libraries ${first})
endforeach()
list(GET llama_libraries 0 first)
get_filename_component(GUANACO_LLAMA_LIB_DIR ${first} DIRECTORY)

add_library(llama-headers INTERFACE)
target_include_directories(llama-headers SYSTEM INTERFACE ${llama_includes})
add_library(llama INTERFACE)
target_link_libraries(llama INTERFACE llama-headers ${llama_libraries})

# Which ggml that is: its headers do not say, its library does.
set(GUANACO_GGML_VERSION "" CACHE STRING "The version of llama.cpp's ggml; empty: it is asked, which needs a program to run")
if(NOT GUANACO_GGML_VERSION)
    list(GET llama_libraries 2 ggml_base)
    try_run(ggml_ran ggml_compiled ${CMAKE_BINARY_DIR}/ggml-version ${CMAKE_CURRENT_LIST_DIR}/ggml_version.c
            LINK_LIBRARIES ${ggml_base} RUN_OUTPUT_VARIABLE ggml_said COMPILE_OUTPUT_VARIABLE ggml_error)
    if(NOT ggml_compiled OR NOT ggml_ran EQUAL 0 OR NOT ggml_said MATCHES "^[0-9]+[.][0-9]+")
        message(FATAL_ERROR "cannot find out the version of ${ggml_base}; give it with -DGUANACO_GGML_VERSION=<major.minor.patch>\n${ggml_error}")
    endif()
    set(GUANACO_GGML_VERSION ${ggml_said})
endif()
