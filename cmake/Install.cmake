# SPDX-License-Identifier: BSD-3-Clause

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(refrain_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/refrain")

install(
  TARGETS refrain refrain_pure
  EXPORT refrainTargets
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT refrainTargets NAMESPACE refrain:: DESTINATION "${refrain_config_dir}")

configure_package_config_file(cmake/refrainConfig.cmake.in "${PROJECT_BINARY_DIR}/refrainConfig.cmake"
                              INSTALL_DESTINATION "${refrain_config_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/refrainConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(
  FILES "${PROJECT_BINARY_DIR}/refrainConfig.cmake"
        "${PROJECT_BINARY_DIR}/refrainConfigVersion.cmake" cmake/LibTorch.cmake
  DESTINATION "${refrain_config_dir}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
