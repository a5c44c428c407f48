# Compile flags shared by every target, and the sanitizer switches of the presets.
set(KZ_SANITIZE "" CACHE STRING "address,undefined or thread")
option(KZ_FUZZ "build the libFuzzer targets (clang)" OFF)

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers)
include_directories(${CMAKE_SOURCE_DIR})
if(KZ_SANITIZE)
  add_compile_options(-fsanitize=${KZ_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${KZ_SANITIZE})
  if(KZ_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

if(KZ_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage for libFuzzer in every library; fuzzers alone link its main
endif()
