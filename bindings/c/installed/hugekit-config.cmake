# find_package(hugekit) gives hugekit::hugekit, the shared library, and hugekit::hugekit-static. All paths begin at this
# file, so that the whole prefix may be moved.
include(CMakeFindDependencyMacro)
find_dependency(Threads)

get_filename_component(_hugekit_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_hugekit_include "${CMAKE_CURRENT_LIST_DIR}/@TO_PREFIX@/include" ABSOLUTE)

if(NOT TARGET hugekit::hugekit)
  add_library(hugekit::hugekit SHARED IMPORTED)
  set_target_properties(hugekit::hugekit PROPERTIES
    IMPORTED_LOCATION "${_hugekit_lib}/libhugekit.so"
    IMPORTED_SONAME "libhugekit.so.@MAJOR@"
    INTERFACE_INCLUDE_DIRECTORIES "${_hugekit_include}")
endif()

if(NOT TARGET hugekit::hugekit-static)
  add_library(hugekit::hugekit-static STATIC IMPORTED)
  set_target_properties(hugekit::hugekit-static PROPERTIES
    IMPORTED_LOCATION "${_hugekit_lib}/libhugekit.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_hugekit_include}"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()

unset(_hugekit_lib)
unset(_hugekit_include)
